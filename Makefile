# fedatlas: `make quickstart` on a fresh machine with Python 3.11 or newer; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed
PACKAGES := platform algorithms dashboards sweeps

STUDIES := homophilic heterophilic ablation sensitivity convergence round-time casestudy comparison
STUDIES += graphs-iid graphs-skewed graphs-domains graphs-time graphs-rho graphs-alpha graphs-epochs graphs-landscape

# Overrides of sweeps, plans and submissions: ALGORITHMS=local,fedgmc SEEDS=1 ROUNDS=20 ONLY=minesweeper,clients=5
# WITHOUT=ogbn-arxiv FLAGS=--available-only; RAY_ADDRESS says where they run.
STUDY ?= quickstart
ALGORITHMS ?=
SEEDS ?=
ROUNDS ?=
ONLY ?=
WITHOUT ?=
FLAGS ?=
SWEEP_OPTIONS := $(if $(ALGORITHMS),--algorithms "$(ALGORITHMS)") $(if $(SEEDS),--seeds $(SEEDS)) \
	$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only "$(ONLY)") $(if $(WITHOUT),--without "$(WITHOUT)") \
	$(FLAGS)

# One thread per process: client processes already use every core.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

.PHONY: help setup quickstart $(STUDIES) $(STUDIES:%=sweep-%) dashboard plan submit test test-slow check format \
	benchmark peers benchmark-peers benchmark-methods benchmark-scale gpu-check audit wheel docs clean

help:
	@grep -hE '^[a-zA-Z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

setup: $(STAMP) ## create .venv with the pinned versions

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedatlas needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	mkdir -p build/typing/fedatlas
	for package in $(PACKAGES); do ln -sfn ../../../$$package build/typing/fedatlas/$$package; done
	touch $@

quickstart: $(STAMP) ## the sweep `quickstart`: three methods on Minesweeper, with table and report
	$(BIN)/fedatlas sweep quickstart $(SWEEP_OPTIONS)

sweep-STUDY: ## a study: homophilic, heterophilic, ablation, sensitivity, convergence, graphs-iid, graphs-domains ...

$(STUDIES:%=sweep-%): sweep-%: $(STAMP)
	$(BIN)/fedatlas sweep $* $(SWEEP_OPTIONS)

$(STUDIES): %: sweep-%

dashboard: $(STAMP) ## the MLflow UI on 127.0.0.1, with the addresses of the study pages
	$(BIN)/fedatlas dashboard

plan: $(STAMP) ## trials, bytes and expected hours of STUDY (STUDY="homophilic heterophilic" SEEDS=10)
	$(BIN)/fedatlas plan $(STUDY) $(SWEEP_OPTIONS)

submit: $(STAMP) ## run STUDY on a Ray cluster (STUDY=heterophilic RAY_ADDRESS=http://head:8265)
	$(BIN)/fedatlas submit $(STUDY) $(SWEEP_OPTIONS)

test: $(STAMP) ## all tests but the slow ones
	$(BIN)/python -m pytest -q

test-slow: $(STAMP) ## the slow tests
	$(BIN)/python -m pytest -q -m slow

check: $(STAMP) ## ruff, mypy and the layer test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(addprefix -p fedatlas.,$(PACKAGES))
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_packaging.py

format: $(STAMP) ## apply ruff's fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(STAMP) ## seconds per round, start-up and memory by placement
	$(BIN)/python benchmarks/rounds.py

peers: ## virtual environments of what benchmark-peers compares with, in ~/.cache/fedatlas/peers
	PYTHON=$(PYTHON) benchmarks/programs/setup-peers.sh

benchmark-peers: $(STAMP) ## FedAvg against a plain PyG loop, OpenFGL and Flower; writes docs/benchmarks.md
	$(BIN)/python benchmarks/peers.py --write

benchmark-methods: $(STAMP) ## every method against FedAvg on its backbone; writes docs/benchmarks.md
	$(BIN)/python benchmarks/methods.py --write

benchmark-scale: $(STAMP) ## from 1,000 to 169,000 nodes and 5 to 1,000 clients; writes docs/benchmarks.md
	$(BIN)/python benchmarks/scale.py --write

gpu-check: ## a GPU's numbers against the CPU's; PYTHON names an interpreter with torch, .venv is not used
	$(PYTHON) benchmarks/gpu_check.py

audit: $(STAMP) ## look the pinned versions up in the list of known weaknesses (needs pypi.org)
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --no-deps --disable-pip --requirement constraints.txt

wheel: $(STAMP) ## build wheel and source archive into dist/, and check them
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

docs: $(DOCS_STAMP) ## build the site into build/site: notebooks executed, links checked
	NO_MKDOCS_2_WARNING=1 FEDATLAS_NOTEBOOKS=run $(BIN)/mkdocs build --strict --quiet

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean: ## remove what make made, but no results
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
