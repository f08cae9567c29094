# make run    the default study, end to end, and its summary        make ui     Prefect and MLflow in the browser
# make check  style, types, import boundaries, the quick tests      make clean  forget everything that was computed
# make test   the same with all tests                               make soak   an hour of harm at random
# make docs   the documentation as a site                           make bench  short benchmarks: ratios, 5 min
# make field-test  every method on five real processes, with the bits of the simulation

PYTHON ?= python3
# make run TORCH_INDEX=ADDRESS: PyTorch from there, such as its build without CUDA (docs/development.md)
TORCH_INDEX ?=
BIN := .venv/bin
# what a user keeps beside these folders is not checked
CODE := fedcore tasks flows tests benchmarks examples
# tests that wait for real devices; those that compute, in two processes that take as long as each other
DEVICES := tests/field tests/cli/test_field.py
LEARNING := $(addprefix tests/,api config core execute methods nets partition report results test_judge_anew.py)
export PATH := $(CURDIR)/$(BIN):$(PATH)
# compiled modules are kept: tests and flows start many processes
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run check test field-test docs bench soak ui clean style pipeline-tests device-tests learning-tests other-tests quick-learning-tests quick-other-tests
.DELETE_ON_ERROR:

run: checkout .venv/run
	@$(BIN)/dvc repro --quiet
	@$(BIN)/fedcore show --brief

check: checkout .venv/test
	@$(MAKE) --no-print-directory --jobs 3 style quick-learning-tests quick-other-tests
	@$(BIN)/python tests/budget.py
	@$(BIN)/python tests/prose.py

test: checkout .venv/test
	@$(BIN)/python tests/budget.py --run $(MAKE) --no-print-directory --jobs 5 style learning-tests other-tests device-tests pipeline-tests
	@$(BIN)/python tests/budget.py --lines

# every method that runs in the field, on a server's and four devices' processes; make test has most of them, on three
field-test: checkout .venv/test
	WHOLE_FIELD=1 $(BIN)/pytest tests/field/test_cells.py -k real_processes

# the documentation as a site, in site/
docs: checkout .venv/test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# each candidate beside a plain loop, in turns
bench: checkout .venv/test
	$(BIN)/python -m benchmarks.w1 3
	$(BIN)/python -m benchmarks.own_net 3
	$(BIN)/python -m benchmarks.nets 3 lenet mcmahan_cnn
	$(BIN)/python -m benchmarks.transport
	@$(BIN)/python -m benchmarks.card || true

# seconds=600 seed=100 only=kill: for ten minutes, other trials, of one kind
soak: checkout .venv/test
	PYTHONPATH=.:tests:tests/end_to_end:tests/soak $(BIN)/python -m soak seconds=$(or $(seconds),3600) seed=$(or $(seed),0) $(if $(only),'only=$(only)')

style:
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

quick-learning-tests quick-other-tests: MARK := -m 'not slow'
quick-learning-tests quick-other-tests: LEARNING := $(filter-out tests/config,$(LEARNING))
quick-other-tests: DEVICES :=

learning-tests quick-learning-tests:
	nice $(BIN)/pytest $(MARK) $(LEARNING)

other-tests quick-other-tests:
	nice $(BIN)/pytest $(MARK) --ignore tests/end_to_end $(patsubst %,--ignore %,$(LEARNING) $(DEVICES))

# these two first, as they wait half of their time: the others fill what they leave of the cores
pipeline-tests:
	$(BIN)/pytest tests/end_to_end

device-tests:
	$(BIN)/pytest $(DEVICES)

ui: checkout .venv/run
	@$(BIN)/fedcore ui

clean:
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m fedcore.pipeline.orchestration.server stop; fi
	rm -rf site .fedcore mlflow.db mlruns runs results pipeline dvc.lock .dvc/cache .dvc/tmp

# The environment runs the code of one checkout: a second one that links to it would silently take it over.
SERVES := .venv/serves
CHECKOUT = if [ -f $(SERVES) ] && [ "$$(cat $(SERVES))" != "$(CURDIR)" ]; then \
	echo ".venv serves $$(cat $(SERVES)); remove the link, and make will create one for this checkout" >&2; exit 2; fi

.PHONY: checkout
checkout:
	@$(CHECKOUT)

# one installation for each target; modules are compiled after it on every core, by pip it would be on one
.venv/run: EXTRAS := pipeline
.venv/test: EXTRAS := pipeline,cluster,s3,sftp,test
.venv/run .venv/test: pyproject.toml constraints.txt | checkout
	@echo "first use: installing into .venv (a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(if $(TORCH_INDEX),$(PIP) --no-deps --index-url $(TORCH_INDEX) torch torchvision)
	@$(PIP) --no-compile --editable '.[$(EXTRAS)]'
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true  # some packages carry files of other versions of Python
	@echo $(CURDIR) > $(SERVES)
	@touch .venv/run $@
