# Every target creates the environment the first time and reuses it afterwards.

VENV ?= .venv
WORKERS ?= 2
MINUTES ?= 60

# The first of these that exists and is new enough; `make PYTHON=...` overrides the search.
ifndef PYTHON
PYTHON := $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo $$p; break; }; done)
endif

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
INPUTS := pyproject.toml constraints.txt
CORE := $(VENV)/.core-installed
TEST := $(VENV)/.test-installed
ALL := $(VENV)/.all-installed
DEMO := build/demo

say = @echo '==>'

# Tests and gates start hundreds of interpreters: bytecode is compiled once, not by each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check test-long mutate lint format assure assure-long bench docs clean
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

help:
	@echo 'make demo         install the core; from a table to a private model and its report'
	@echo 'make test         install test dependencies; run the tests that every change should pass'
	@echo 'make check        install everything; run every test: Flower, Ray, Dask, browser, peers'
	@echo 'make lint         check formatting, style, types and import contracts'
	@echo 'make format       apply the formatting that lint checks'
	@echo 'make assure       run the assurance gates, each on its mutants first'
	@echo 'make bench        benchmark Veracal against peer libraries'
	@echo 'make docs         build the documentation into site/, offline'
	@echo 'make test-long    run the tests that are too slow for make check'
	@echo 'make assure-long  run the gates with their long settings'
	@echo 'make mutate       mutate lines of the release path; check that a test fails'
	@echo 'make clean        remove the environment and all build output'
	@echo ''
	@echo 'Variables: VENV=$(VENV)  PYTHON=$(PYTHON)  WORKERS=$(WORKERS)  MINUTES=$(MINUTES) (of make mutate)'

# ---------------------------------------------------------------- environment

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'Veracal needs Python 3.11 or newer, but none was found on the path. Install one, or name it: make PYTHON=/path/to/python3.11'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "Veracal needs Python 3.11 or newer, but PYTHON=$(PYTHON) is not ($$($(PYTHON) --version 2>&1 | head -n 1)). Name another: make PYTHON=/path/to/python3.11"; exit 1; }
	$(say) "Creating the environment $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(CORE): $(INPUTS) | $(BIN)/python
	$(say) 'Installing Veracal with its report extra (about a minute)'
	@$(PIP) --constraint constraints.txt --editable '.[report]'
	@touch $@

# torch is named in the same command: resolved separately it may install gigabytes of CUDA.
$(TEST): $(INPUTS) | $(BIN)/python
	$(say) 'Installing Veracal and its test dependencies (about a minute)'
	@start=$$(date +%s); \
	$(PIP) --no-compile --constraint constraints.txt torch==2.13.0 --editable '.[test]' && \
	echo "    installed in $$(($$(date +%s) - start)) s"
	@touch $(CORE) $@

# No bytecode is compiled here: most modules of the extras are never imported.
$(ALL): $(INPUTS) | $(BIN)/python
	$(say) 'Installing Veracal with every extra (about three minutes)'
	@$(PIP) --no-compile --constraint constraints.txt torch==2.13.0 --editable '.[all]'
	@touch $(CORE) $(TEST) $@

# ---------------------------------------------------------------- work

# The demo uses its own ledgers, so that it never spends the user's budget.
demo: export VERACAL_LEDGERS := $(abspath $(DEMO))/ledgers
demo: $(CORE)
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	$(say) 'Load a built-in table through its declared schema, and split it'
	@$(BIN)/veracal data show digits
	$(say) 'Train a private classifier: charge, train, calibrate, measure, report'
	@$(BIN)/veracal fit digits --epsilon 8 --out $(DEMO)/model
	$(say) 'Show the ledger, and verify its hashes and sums'
	@$(BIN)/veracal ledger show digits
	@$(BIN)/veracal ledger verify digits
	$(say) 'Audit how much decisions depend on the noise: 200 models, for the data holder only'
	@$(BIN)/veracal audit breast-cancer --epsilon 1 4 --runs 200 --out $(DEMO)/audit
	$(say) 'Done. Report: $(DEMO)/model/report.html. Audit: $(DEMO)/audit/audit.html'

# One thread per worker avoids oversubscription. Each worker starts with an equal share of the
# tests, in order, and takes over tests of others when it is done.
PYTEST := -m pytest -n $(WORKERS) --dist worksteal -p no:benchmark

test: $(TEST)
	$(say) 'Running the tests ($(WORKERS) at a time); make check runs all of them'
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python $(PYTEST) -m 'not long and not full'

# It also measures which branches of the release path the tests take, and fails below the floors.
check: $(ALL)
	$(say) 'Running the full suite ($(WORKERS) at a time)'
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python $(PYTEST) -p tests.tools.branches
	@$(BIN)/python -m tests.tools.branches

test-long: $(ALL)
	$(say) 'Running the long tests ($(WORKERS) at a time)'
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python $(PYTEST) -m long --timeout 3600

mutate: $(ALL)
	@test -f build/branches.npz || { echo 'Run make check first: it records which tests execute which lines.'; exit 1; }
	$(say) 'Mutating lines of the release path for $(MINUTES) minutes'
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m tests.tools.mutate --minutes $(MINUTES)

lint: $(ALL)
	$(say) 'Checking the formatting'
	@$(BIN)/ruff format --check .
	$(say) 'Checking the style'
	@$(BIN)/ruff check .
	$(say) 'Checking the types'
	@$(BIN)/mypy --num-workers $(WORKERS)
	$(say) 'Checking the import contracts'
	@$(BIN)/lint-imports

format: $(ALL)
	$(say) 'Formatting'
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --select I .

# One thread per gate, for the same reason.
assure: $(ALL)
	$(say) 'Running the assurance gates'
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m assurance --jobs 2

assure-long: $(ALL)
	$(say) 'Running the assurance gates with their long settings'
	@$(BIN)/python -m assurance --long

bench: $(ALL)
	$(say) 'Running the benchmarks'
	@$(BIN)/python -m pytest benchmarks -p no:xdist --timeout 3600

docs: $(ALL)
	$(say) 'Building the documentation into site/'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'Open site/index.html.'

clean:
	$(say) 'Removing $(VENV) and all build output'
	@rm -rf $(VENV) site dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	@find src tests assurance benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
