# Everything from a fresh clone, into .venv/. Each target may be repeated: it does what is missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXECUTOR := packages/snakemake-executor-plugin-submitit
CORES ?= $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')
# Several small trainings at once, one thread each; numerical libraries must not take all cores.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo env test test-fast test-slow test-slurm bench lint lock clean

help:
	@echo "make demo   the complete small study on this machine: every table and figure, and a report"
	@echo "make test   all tests"
	@echo "make test-fast   what takes a minute and a half of them"
	@echo "make test-slow   what needs transformers, a browser or a minute (the audit of others' models, its page)"
	@echo "make test-slurm   the executor against a real Slurm (needs root; installs Debian's packages)"
	@echo "make bench  benchmarks of this machine into benchmarks/ (20 minutes; leave it alone)"
	@echo "make env    the environment alone, in $(VENV)/"
	@echo "make lint   ruff, snakefmt, mypy, snakemake --lint"
	@echo "make lock   resolve the dependencies anew into envs/"
	@echo "make clean  remove what the demo made (results/demo and its runs in work/)"

env: $(VENV)/run.ok

# An environment holds the path of the folder that it was made in: in a copy of a clone it would run
# the original's code, in a moved one nothing. Then, or if its Python is gone, it is made anew.
OURS := $(shell grep -qF '$(abspath $(VENV))' $(BIN)/activate 2>/dev/null && $(BIN)/python -c '' 2>/dev/null && echo yes)

.PHONY: anew
$(VENV)/python.ok: $(if $(OURS),,anew)
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"blindspot needs Python 3.11 or later, $(PYTHON) is {v.major}.{v.minor}; set PYTHON=python3.11")'
	@echo "==> new environment in $(VENV)/"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/run.ok: $(VENV)/python.ok envs/requirements.txt pyproject.toml $(EXECUTOR)/pyproject.toml
	@echo "==> installing torch, snakemake and the rest (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e $(EXECUTOR) -e .
	@touch $@

$(VENV)/dev.ok: $(VENV)/run.ok envs/requirements-dev.txt
	@echo "==> installing what the tests need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/requirements-dev.txt
	@touch $@

$(VENV)/slow.ok: $(VENV)/dev.ok envs/requirements-slow.txt
	@echo "==> installing transformers"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/requirements-slow.txt
	@touch $@

# The validators of RO-Crates and of CITATION.cff need older packages than ours.
$(VENV)/roc.ok: $(VENV)/slow.ok
	@echo "==> installing validators, in an environment of its own"
	@$(PYTHON) -m venv --clear $(VENV)/roc
	@$(VENV)/roc/bin/python -m pip install --quiet --disable-pip-version-check roc-validator==0.13.0 rocrate==0.16.0 cffconvert==2.0.0
	@touch $@

demo: $(VENV)/run.ok
	@echo "==> the demo study on $(CORES) cores; results go to results/demo/"
	@$(BIN)/snakemake all --cores $(CORES) --configfile studies/demo.yaml

test: $(VENV)/dev.ok
	@echo "==> tests"
	@$(BIN)/python -m pytest -n $(CORES) --dist worksteal

test-slow: $(VENV)/roc.ok
	@echo "==> tests with transformers and a browser"
	@HF_HUB_OFFLINE=1 ROC_PYTHON=$(abspath $(VENV))/roc/bin/python $(BIN)/python -m pytest -m extra -n $(CORES) --dist worksteal

test-fast: $(VENV)/dev.ok
	@echo "==> tests without Snakemake, other processes and longer trainings"
	@$(BIN)/python -m pytest -n $(CORES) --dist worksteal -m "not slow and not extra"

test-slurm: $(VENV)/dev.ok
	@echo "==> tests against a real Slurm on this machine"
	@$(BIN)/python $(EXECUTOR)/tests/slurm/cluster.py install
	@$(BIN)/python -m pytest tests/slurm $(EXECUTOR)/tests/slurm -n 4 --dist worksteal

bench: $(VENV)/dev.ok
	@echo "==> benchmarks; nothing else should run meanwhile"
	@$(BIN)/python benchmarks/all.py

lint: $(VENV)/dev.ok
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check workflow
	$(BIN)/mypy
	$(BIN)/snakemake --lint

lock: $(VENV)/python.ok
	$(BIN)/python envs/lock.py

# States of the demo's runs, but for those that another study of yours has results of.
clean:
	@for run in $$(cd results/demo/runs 2>/dev/null && ls -d */*/*); do \
		set -- $$(ls -d results/*/runs/$$run | grep -v '^results/example/'); \
		[ $$# -gt 1 ] || rm -rf "work/runs/$$run"; \
	done
	rm -rf results/demo
