# `make demo` and `make test` are all that a newcomer needs; each makes .venv if it is not there yet.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-slow bench learning format clean

demo: $(INSTALLED)
	$(BIN)/foveate demo

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

bench: $(INSTALLED)
	$(BIN)/python benchmarks/core.py

# Runs that are in benchmarks/results already are not done again.
learning: $(INSTALLED)
	$(BIN)/python benchmarks/learning.py demo
	$(BIN)/python benchmarks/learning.py ablations

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)

# torch and its matching torchvision come from PyPI: about a minute, and 5.5 GB with the CUDA libraries.
$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"Python 3.11 or newer is needed, got {sys.version}"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(INSTALLED)
