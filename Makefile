# Everything a developer or CI does; `make help` lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help dev demo test test-all lint format docs docs-check bench bench-scale

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV): this takes some minutes, once"
	@$(PIP) install -qq -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV) for development: this takes several minutes, once"
	@$(PIP) install -qq -e '.[test]'
	@touch $@ $(VENV)/.installed

dev: $(VENV)/.installed-test ## Set up .venv with everything for development
	@echo "ready: $(BIN)/pth-tracker, $(BIN)/pytest"

demo: $(VENV)/.installed ## Train the demo with its bugs, audit it, and check that the audit finds them
	@status=0; $(BIN)/pth-tracker demo $(DEMO_FLAGS) || status=$$?; \
	if [ $$status -eq 1 ]; then \
		echo "make demo: as it should, the audit found the demo's bugs (exit status 1)"; \
	else \
		echo "make demo: the audit should have failed with exit status 1, and ended with $$status" >&2; exit 1; \
	fi

test: $(VENV)/.installed-test ## Run the tests that are not slow
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-all: test ## Run all tests: after the others, those with real packages, a browser or scale
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

lint: $(VENV)/.installed-test ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests tools benchmarks fuzz

format: $(VENV)/.installed-test ## Format the code and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-test ## Write the generated documentation, and build all of it into site/
	$(BIN)/python tools/docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

docs-check: $(VENV)/.installed-test ## Fail where the generated documentation is not up to date, or building it warns
	$(BIN)/python tools/docs.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(VENV)/.installed-test ## False alarms and found faults, then one table of times against named alternatives
	$(BIN)/python benchmarks/precision.py
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python benchmarks/table.py

bench-scale: $(VENV)/.installed-test ## Two nights over 2,000 runs of 1,000 steps in PostgreSQL behind an MLflow server
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python benchmarks/scale.py
