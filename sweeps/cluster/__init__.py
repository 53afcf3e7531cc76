"""Files that bring a Ray cluster up: KubeRay, Ray's own autoscaler, SLURM. docs/cluster.md explains them."""
