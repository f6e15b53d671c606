# Thin: each target calls one command.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

.PHONY: demo test quick lint up down bench install lock clean

demo: install
	$(BIN)/trainwright run demo

test: install
	$(BIN)/pytest

quick: install
	$(BIN)/pytest -m "not slow"

lint: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && tests/typecheck.sh $(BIN)/python

up down: install
	$(BIN)/trainwright $@

bench: install
	@for program in $(wildcard tests/bench/*.py); do $(BIN)/python $$program || exit 1; done

install: $(STAMP)

# torch comes first and alone: whatever else depends on it must find it there. Everything else is
# locked with hashes; DeepSpeed's op is compiled here, so that no run waits for a compiler.
$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Trainwright needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	$(BIN)/trainwright doctor --prebuild
	touch $(STAMP)

lock: install
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/python infra/lock.py

clean:
	rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache
