# make demo and make test need nothing but Python ≥ 3.11 and make; everything else goes into .venv.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test heavy proofs docs consumers recsys-peers runtime gpu slice lint types format clean

# Bytecode is kept, whatever the shell says: every process that a test starts would compile the package again
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
CONSUMERS := .venv-consumers
RUNTIME := .venv-runtime
RECSYS := .venv-recsys
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
DEMO_JOB := configs/jobs/llama3_405b_two_buildings.yaml
DEMO_DIR := build/llama3_405b
# What a module shares is made once: its tests go to one process. Proofs go wherever a process is free.
PYTEST_ARGS ?= -n auto --dist loadfile

# The first interpreter that runs, is new enough and can make virtual environments (a name on PATH alone proves none of it).
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$python && break; done)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## plan Llama 3.1 405B on two unequal buildings; launch files in build/llama3_405b
	$(BIN)/scaleacross plan $(DEMO_JOB) -o $(DEMO_DIR)

test: $(VENV)/.installed-dev ## run the test suite (PYTEST_ARGS="-k name" narrows it)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

heavy: $(VENV)/.installed-dev ## run the tests that take a second of CPU and more, which make test leaves out
	$(BIN)/python -m pytest -m "heavy and not slow" $(PYTEST_ARGS)

proofs: $(VENV)/.installed-dev ## run the long proofs, of which make test and make heavy take a sample (PROOFS=0/16: a sixteenth of them, 1/16 the next)
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS:loadfile=worksteal) $(if $(PROOFS),--share $(PROOFS))

docs: $(VENV)/.installed-docs ## build the documentation in build/site, run its commands and notebooks
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/python -m pytest -m docs $(PYTEST_ARGS:loadfile=worksteal) tests/docs

consumers: $(VENV)/.installed-dev $(CONSUMERS)/.installed ## let torchrun, torchtitan and Megatron read what we emit
	SCALEACROSS_TORCHTITAN_PYTHON=$(abspath $(CONSUMERS))/bin/python SCALEACROSS_MEGATRON_PYTHON=$(abspath $(CONSUMERS))/bin/python \
		SCALEACROSS_TRANSFORMERS_PYTHON=$(abspath $(CONSUMERS))/bin/python \
		SCALEACROSS_NCCL_LIBRARY=$$(ls $(abspath $(CONSUMERS))/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2 2>/dev/null) \
		$(BIN)/python -m pytest -m consumer

recsys-peers: $(VENV)/.installed-dev $(RECSYS)/.installed ## let TorchRec read, plan and train; our plans against its planner's
	SCALEACROSS_TORCHREC_PYTHON=$(abspath $(RECSYS))/bin/python $(BIN)/python -m pytest -m consumer tests/recommendation
	$(RECSYS)/bin/python benchmarks/recsys_peers.py --sets mlperf-dlrm-dcnv2 synthetic-tiny --ranks 8 16

runtime: $(RUNTIME)/.installed ## run launch.json: the tests of the runtime, with torch and triton
	$(RUNTIME)/bin/python -m pytest -m "slow or not slow" tests/runtime tests/testbed/test_testbed_training.py

gpu: $(RUNTIME)/.installed ## on a machine with an NVIDIA GPU: kernels, schedules over NCCL and training on it, four ranks on one card
	$(RUNTIME)/bin/python -m pytest tests/runtime/test_on_a_gpu.py
	$(RUNTIME)/bin/python benchmarks/kernel_bandwidth.py

# Every value of every dimension of the space is in its first 24 points. A second per search and rival is too short for good plans, and
# enough to show that none of ours loses to what it starts from, and that estimates agree with the simulation on three plans of four and more.
slice: $(VENV)/.installed-dev ## 24 points of the published design space; fails when our plan loses, or estimates leave the simulation
	$(BIN)/scaleacross reproduce scale_across --points 24 --set time_limit_s=1 --set rival_time_limit_s=1 \
		--replay --agree 0.75 -j 2 -o build/slice

lint: $(VENV)/.installed-dev ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev ## mypy --strict on the package
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## let ruff fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what make made
	rm -rf $(VENV) $(CONSUMERS) $(RUNTIME) $(RECSYS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: no Python >= 3.11 with the venv module found. Install one (Debian, Ubuntu: apt install python3.11-venv)" >&2; \
		echo "       or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; fi
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# torch first and by itself: an unpinned torch that another package asks for brings gigabytes of CUDA libraries
$(CONSUMERS)/.installed: $(VENV)/.created
	$(PYTHON) -m venv --clear $(CONSUMERS)
	$(CONSUMERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-input torch==2.13.0
	$(CONSUMERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-input numpy triton==3.7.0 torchtitan==0.3.0 megatron-core==0.16.1 transformers==5.23.0
	$(CONSUMERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps --target $(CONSUMERS)/torchtitan-0.2.2 torchtitan==0.2.2
	$(CONSUMERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps --target $(CONSUMERS)/megatron-bridge \
		--python-version 3.12 --only-binary=:all: --ignore-requires-python megatron-bridge==0.3.1
	@touch $@

# torchrec 1.9.2 asks for an fbgemm of CUDA: that of CPUs is put in its place, so its dependencies are named
$(RECSYS)/.installed: pyproject.toml $(VENV)/.created
	$(PYTHON) -m venv --clear $(RECSYS)
	$(RECSYS)/bin/python -m pip install --quiet --disable-pip-version-check --no-input torch==2.13.0
	$(RECSYS)/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps torchrec==1.9.2 fbgemm-gpu-cpu==1.8.0
	$(RECSYS)/bin/python -m pip install --quiet --disable-pip-version-check --no-input -e . torchmetrics==1.9.0 tensordict==0.15.3 \
		iopath==0.1.10 pyre-extensions==0.0.32 psutil tqdm
	@touch $@

$(RUNTIME)/.installed: pyproject.toml $(VENV)/.created
	$(PYTHON) -m venv --clear $(RUNTIME)
	$(RUNTIME)/bin/python -m pip install --quiet --disable-pip-version-check --no-input torch==2.13.0
	$(RUNTIME)/bin/python -m pip install --quiet --disable-pip-version-check --no-input -e '.[runtime]' 'pytest>=9' 'hypothesis>=6.150' 'expecttest>=0.3'
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.created
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-docs: pyproject.toml $(VENV)/.installed-dev
	$(PIP_INSTALL) -e '.[docs]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.created
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed
