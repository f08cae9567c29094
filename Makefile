# make run    the default study, end to end, and its summary        make ui     Prefect and MLflow in the browser
# make check  style, types, import boundaries, the quick tests      make clean  forget everything that was computed
# make test   the same with all tests                           make soak   an hour of harm at random

PYTHON ?= python3
BIN := .venv/bin
# what a user keeps beside these folders is not checked
CODE := fedcore tasks flows tests benchmarks examples
export PATH := $(CURDIR)/$(BIN):$(PATH)
# compiled modules are kept: tests and flows start many processes
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run check test soak ui clean style quick-tests pipeline-tests library-tests
.DELETE_ON_ERROR:

run: .venv/run
	@$(BIN)/dvc repro --quiet
	@$(BIN)/python -m flows.compare answers

check: .venv/test
	@$(MAKE) --no-print-directory --jobs 2 style quick-tests

test: .venv/test
	@$(MAKE) --no-print-directory --jobs 3 style pipeline-tests library-tests

# seconds=600 seed=100 only=kill: for ten minutes, other trials, of one kind
soak: .venv/test
	PYTHONPATH=.:tests:tests/end_to_end:tests/soak $(BIN)/python -m soak seconds=$(or $(seconds),3600) seed=$(or $(seed),0) $(if $(only),only=$(only))

style:
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

quick-tests:
	$(BIN)/pytest -m 'not slow' --ignore tests/end_to_end --numprocesses 2 --dist worksteal

pipeline-tests:
	$(BIN)/pytest tests/end_to_end

library-tests:
	$(BIN)/pytest --ignore tests/end_to_end --numprocesses 2 --dist worksteal

ui: .venv/run
	@$(BIN)/python -m flows.ui

clean:
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m fedcore.pipeline.orchestration.server stop; fi
	rm -rf .fedcore mlflow.db mlruns runs results pipeline dvc.lock .dvc/cache .dvc/tmp

.venv/run: pyproject.toml constraints.txt
	@echo "first use: installing into .venv (a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) --editable '.[pipeline]'
	@touch $@

.venv/test: .venv/run
	@$(PIP) --editable '.[pipeline,cluster,s3,sftp,test]'
	@touch $@
