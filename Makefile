# Every target makes its own environment the first time and reuses it afterwards.

VENV ?= .venv
WORKERS ?= 2
MINUTES ?= 60

# The first of these that runs and is new enough; `make PYTHON=...` overrules the search.
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

# Tests and gates start hundreds of interpreters: what they import is compiled once, not by each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check branches test-long mutate lint format assure assure-long bench docs clean
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

help:
	@echo 'make demo         set up the core; from a table to a private model and its report'
	@echo 'make test         set up what it needs and run the tests that a change should pass'
	@echo 'make check        set up everything and run every test: Flower, Ray, Dask, browser, peers'
	@echo 'make lint         formatting, style, types and import contracts'
	@echo 'make format       apply the formatting that lint asks for'
	@echo 'make assure       run the assurance gates, each on its mutants first'
	@echo 'make bench        time Veracal beside its peers'
	@echo 'make docs         build the documentation into site/, offline'
	@echo 'make branches     make check, and which branches of the release path it takes'
	@echo 'make test-long    the tests too slow for make check'
	@echo 'make assure-long  the gates with their long settings'
	@echo 'make mutate       change lines of the release path and see whether a test notices'
	@echo 'make clean        remove the environment and everything built'
	@echo ''
	@echo 'Variables: VENV=$(VENV)  PYTHON=$(PYTHON)  WORKERS=$(WORKERS)  MINUTES=$(MINUTES) (of make mutate)'

# ---------------------------------------------------------------- environment

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'Veracal needs Python 3.11 or newer, and none was found on the path. Install one, or name it: make PYTHON=/path/to/python3.11'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "Veracal needs Python 3.11 or newer, and PYTHON=$(PYTHON) is not ($$($(PYTHON) --version 2>&1 | head -n 1)). Name another: make PYTHON=/path/to/python3.11"; exit 1; }
	$(say) "Making the environment $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(CORE): $(INPUTS) | $(BIN)/python
	$(say) 'Installing Veracal with its report extra (about a minute)'
	@$(PIP) --constraint constraints.txt --editable '.[report]'
	@touch $@

# torch is named beside everything else: resolved on its own it may bring gigabytes of CUDA.
$(TEST): $(INPUTS) | $(BIN)/python
	$(say) 'Installing Veracal with what its tests need (about a minute)'
	@start=$$(date +%s); \
	$(PIP) --no-compile --constraint constraints.txt torch==2.13.0 --editable '.[test]' && \
	echo "    installed in $$(($$(date +%s) - start)) s"
	@touch $(CORE) $@

# Modules are compiled when they are imported: most of what all extras bring never is.
$(ALL): $(INPUTS) | $(BIN)/python
	$(say) 'Installing Veracal with every extra (about three minutes)'
	@$(PIP) --no-compile --constraint constraints.txt torch==2.13.0 --editable '.[all]'
	@touch $(CORE) $(TEST) $@

# ---------------------------------------------------------------- work

# The demo has ledgers of its own, so that it never spends a budget of the user's.
demo: export VERACAL_LEDGERS := $(abspath $(DEMO))/ledgers
demo: $(CORE)
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	$(say) 'A built-in table, through its declared schema'
	@$(BIN)/veracal data show digits
	$(say) 'A private classifier of it: charged, trained, repaired, measured, reported'
	@$(BIN)/veracal fit digits --epsilon 8 --out $(DEMO)/model
	$(say) 'What was charged, and that nothing of it was changed'
	@$(BIN)/veracal ledger show digits
	@$(BIN)/veracal ledger verify digits
	$(say) 'How much of each decision is the luck of the noise: 200 models, told to whoever holds the records'
	@$(BIN)/veracal audit breast-cancer --epsilon 1 4 --runs 200 --out $(DEMO)/audit
	$(say) 'The report: $(DEMO)/model/report.html; the audit: $(DEMO)/audit/audit.html'

# One thread per worker: two workers on two cores are faster alone than crowded. Each begins with
# half of the tests, in their order, and whoever ends first takes over what the other has left.
PYTEST := -m pytest -n $(WORKERS) --dist worksteal -p no:benchmark

test: $(TEST)
	$(say) 'Running the tests ($(WORKERS) at a time); make check runs all of them'
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python $(PYTEST) -m 'not long and not full'

check: $(ALL)
	$(say) 'Running the full suite ($(WORKERS) at a time)'
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python $(PYTEST)

branches: $(ALL)
	$(say) 'Running the full suite, counting the branches of the release path ($(WORKERS) at a time)'
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python $(PYTEST) -p tests.tools.branches
	@$(BIN)/python -m tests.tools.branches

test-long: $(ALL)
	$(say) 'Running the long tests ($(WORKERS) at a time)'
	@OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python $(PYTEST) -m long --timeout 3600

mutate: $(ALL)
	@test -f build/branches.npz || { echo 'Run make branches first: it notes which tests enter which lines.'; exit 1; }
	$(say) 'Changing lines of the release path for $(MINUTES) minutes'
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
	$(say) 'Removing $(VENV) and everything built'
	@rm -rf $(VENV) site dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	@find src tests assurance benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
