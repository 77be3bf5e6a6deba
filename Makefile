# Everything a fresh clone needs: `make run` and `make test` build the virtual environment first, once.
#
#   make run      one denoising step on both paths, compared (about a minute the first time)
#   make test     the tests of every change
#   make test-all all tests: processes, meshes, the TPU compiler and fuzzing too (half an hour)
#   make lint     ruff and mypy
#   make bench    what observing and diffs cost (minutes)
#   make fault-bench  every fault and innocent variant (hours). This and those below write benchmarks/results/NAME.json and
#                 NAME.md, and go on where they stopped
#   make history oracle  faults from the history of public repositories (a quarter of an hour)
#   make mutants stacks  faults that nobody chose, and four at once (minutes)
#   make families diffusers' transformers that parity has no line for, each as it is (an hour or two)
#   make gpu      whether parity works on a GPU (minutes on one)
#   make pictures  docs/pictures: what a terminal and a browser show of a run (minutes; needs chromium with its driver)
#   make docs     the documents as a site, in build/site (needs the extra docs, which it installs)
#   make goldens  records the goldens in golden/ anew (to be committed where they changed for a reason)
#   make fuzz     tests/fuzz with many examples (hours; FUZZ_EXAMPLES=10000)
#   make kills    commands that write killed where they write (KILLS=20 of each kind; hours)
#   make older    the recorder's tests beside older versions of torch and jax, in an environment of their own
#   make install  only the virtual environment
#
# PYTHON=python3.12 make install   builds it with another Python (3.11 or later).
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make install   takes torch without CUDA, gigabytes less.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Newer than pyproject.toml where the environment holds what it asks for, so that a second `make` installs nothing.
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := install
.PHONY: install run test test-all lint older bench fault-bench history oracle mutants ablations sensitivity pitfalls
.PHONY: stacks families pipelines classes gpu goldens pictures docs fuzz kills

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' --constraint constraints.txt
	touch $@

run: install
	$(BIN)/parity run --steps 1

# Hundreds of processes that the tests start load what the first of them has compiled, whatever the machine's habit.
test test-all: export PYTHONDONTWRITEBYTECODE :=
test: install
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# And each program as XLA makes it, where the tests of every change have it compiled fast.
test-all: export XLA_FLAGS := --xla_llvm_disable_expensive_passes=true
test-all: install
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "slow or not slow" --timeout 600

OLDER := .venv-older

$(OLDER)/.installed: pyproject.toml constraints-older.txt
	$(PYTHON) -m venv $(OLDER)
	$(OLDER)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[torchax]' \
		--constraint constraints-older.txt flax hypothesis pytest pytest-timeout pytest-xdist
	touch $@

older: $(OLDER)/.installed
	$(OLDER)/bin/python -m pytest --numprocesses 2 tests/recorder -m "slow or not slow" --timeout 600

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

FUZZ_EXAMPLES ?= 3000

fuzz: install
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest tests/fuzz -m slow --timeout 0 --hypothesis-show-statistics

KILLS ?= 20

kills: install
	KILLS=$(KILLS) $(BIN)/python -m pytest tests/kills tests/golden/test_writer.py -m "slow or not slow" --timeout 0

bench: install
	$(BIN)/python benchmarks/cost.py diff
	$(BIN)/python benchmarks/cost.py observe

# `make fault-bench RESTART=1` forgets the rows of a stopped run.
fault-bench: install
	$(if $(RESTART),rm -f .fault-bench.json)
	$(BIN)/python benchmarks/fault_bench.py
	rm .fault-bench.json

# What the judge says of records that were made once: what changed. `make oracle ACCEPT=1` commits to it.
oracle: export PARITY_CACHE ?= $(CURDIR)/.cache/parity
oracle: install
	$(BIN)/python benchmarks/oracle.py $(if $(ACCEPT),--accept)

# `make history RESTART=1` forgets the rows of a stopped run.
history: install
	$(if $(RESTART),rm -f .history.json)
	$(BIN)/python benchmarks/history --state .history.json
	rm .history.json

# `make mutants RESTART=1` forgets the rows of a stopped run.
mutants: install
	$(if $(RESTART),rm -f .mutants.json)
	$(BIN)/python benchmarks/mutants.py
	rm .mutants.json

# `make stacks RESTART=1` forgets the rows of a stopped run.
stacks: install
	$(if $(RESTART),rm -f .stacks.json)
	$(BIN)/python benchmarks/stacks.py
	rm .stacks.json

ablations: install
	$(BIN)/python benchmarks/ablations.py
	rm .ablations.json

sensitivity: install
	$(BIN)/python benchmarks/sensitivity.py
	rm .sensitivity.json

pitfalls: install
	$(BIN)/python benchmarks/pitfalls
	rm .pitfalls.json

# `make families RESTART=1` forgets the rows of a stopped run.
families: install
	$(if $(RESTART),rm -f .families.json)
	$(BIN)/python benchmarks/families.py
	rm .families.json

# Of a clone of diffusers: `make pipelines CHECKOUT=../diffusers`.
pipelines: install
	$(BIN)/python benchmarks/pipelines.py $(CHECKOUT)
	rm .pipelines.json

# Of the same.
classes: install
	$(BIN)/python -W ignore benchmarks/classes.py $(CHECKOUT)
	rm .classes.json

gpu: install
	$(BIN)/python benchmarks/gpu.py

pictures: install
	$(BIN)/python tools/pictures.py --out docs/pictures

docs: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The embeddings are made once and kept: other machines' text encoders round otherwise.
GOLDENS := tiny-hunyuan-video-1.5

goldens: install $(GOLDENS:%=golden/%.embeddings.safetensors)
	@set -ex; for model in $(GOLDENS); do \
	  $(BIN)/parity record golden/$$model --model $$model --steps 1 \
	    --inputs golden/$$model.embeddings.safetensors --overwrite; done

golden/%.embeddings.safetensors: | install
	$(BIN)/python golden/embeddings.py $* $@
