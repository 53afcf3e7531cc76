#!/usr/bin/env bash
# Virtual environments of the peers that `make benchmark-peers` compares with, from the Python Package Index.
#   benchmarks/programs/setup-peers.sh [FOLDER]      FOLDER: FEDATLAS_PEERS, or ~/.cache/fedatlas/peers
set -euo pipefail
folder=${1:-${FEDATLAS_PEERS:-$HOME/.cache/fedatlas/peers}}
python=${PYTHON:-python3}
shared=(torch==2.13.0 torch-geometric==2.8.1 psutil==7.2.2 scikit-learn==1.9.1)
mkdir -p "$folder"
# Flower needs a version of Ray of its own.
for name in pyg flower; do
  "$python" -m venv "$folder/$name"
  "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check "${shared[@]}"
done
"$folder/pyg/bin/python" -m pip install --quiet --disable-pip-version-check openfgl-lib==1.1.0 munkres==3.0.0
"$folder/flower/bin/python" -m pip install --quiet --disable-pip-version-check "flwr[simulation]==1.42.0"
echo "peers are in $folder"
