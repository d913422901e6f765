# `make run`, `make test` and `make check` each do the set-up that they need, once, in .venv.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
CONFIG := setup.cfg pyproject.toml
SOURCES = $(shell find ftrt -name '*.py')

.DEFAULT_GOAL := help
.PHONY: help run test test-long test-slurm test-gpu calm check sim model campaign campaign-quick clean

help:
	@echo "make run    a rollout job that loses a worker, compared with the run without a fault"
	@echo "make test   the tests"
	@echo "make test-long  the tests that make test leaves out for the time they take"
	@echo "make test-slurm  jobs/ under a Slurm on this machine, installed if root may (Debian)"
	@echo "make test-gpu  the tests that need two GPUs, with the python3 that has CuPy"
	@echo "make calm   16 ranks on these cores for ten minutes, then under a quota, then suspended"
	@echo "make sim    100,000 simulated seeds; writes docs/results/simulator.md"
	@echo "make model  the agreement's model checked with spin"
	@echo "make campaign-quick  the paper's faults, a few of each, in build/campaign-quick"
	@echo "make campaign  the whole campaign in build/campaign; started again it goes on"
	@echo "make check  formatter, linter, type checker and tests"
	@echo "make clean  remove .venv and build products"

.venv/.base: $(CONFIG)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[rollout]'
	@touch $@

.venv/.dev: .venv/.base
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# Compiles every numba kernel into its cache, so that the ranks of a job only load them.
.venv/.warm: .venv/.base $(SOURCES)
	$(BIN)/python -m ftrt.warm
	@touch $@

run: .venv/.warm
	@mkdir -p build
	@dir=$$(mktemp -d build/run.XXXXXX) && \
	echo "== with a fault: worker 1 is killed at its 60th message" && \
	$(BIN)/ftrt run -n 4 --spares 1 --fault kill:1@60msg \
	    --ledger $$dir/fault --json $$dir/fault.json apps/rollout.py && \
	echo "== without a fault" && \
	$(BIN)/ftrt run -n 4 --ledger $$dir/clean --json $$dir/clean.json apps/rollout.py && \
	$(BIN)/python -m ftrt.launch.compare $$dir/fault.json $$dir/clean.json

test: .venv/.dev .venv/.warm
	$(BIN)/python -m pytest -q

test-long: .venv/.dev .venv/.warm
	$(BIN)/python -m pytest -q -m long

test-slurm: .venv/.dev .venv/.warm
	FTRT_INSTALL_SLURM=1 $(BIN)/python -m pytest -q -rs -m "slurm or not slurm" tests/jobs

# With the Python that has CuPy and numba-cuda: a GPU host brings its own, or a venv with an extra.
test-gpu:
	PYTHONPATH=$(CURDIR):$$PYTHONPATH $(PYTHON) -m pytest -q -rs -p no:cacheprovider tests/gpu

# A quarter of an hour's wait for nothing to happen: nobody is replaced. The quota takes root.
calm: .venv/.dev .venv/.warm
	$(BIN)/python -m tests.calm --situation crowded --seconds 600
	$(BIN)/python -m tests.calm --situation quota --seconds 120
	$(BIN)/python -m tests.calm --situation suspended --seconds 120

check: .venv/.dev .venv/.warm
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy ftrt
	$(BIN)/python -m pytest -q

# In pieces of its own; started again it goes on where it was.
sim: .venv/.base
	$(BIN)/python -m ftrt.sim.long

campaign-quick: .venv/.warm
	rm -rf build/campaign-quick
	$(BIN)/ftrt campaign --seed 1 --size 16 --trials 5 --controls 4 --out build/campaign-quick

campaign: .venv/.warm
	$(BIN)/ftrt campaign --seed 1 --trials 210 --out build/campaign

model: .venv/.base
	$(BIN)/python models/check.py
	$(BIN)/python models/check.py --bugs

clean:
	rm -rf .venv build *.egg-info
