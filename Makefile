# Needs only python3 (3.11 or newer) and make. Everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PRODUCT := $(VENV)/.product
STAMP := $(VENV)/.made

.DEFAULT_GOAL := help
.PHONY: help hooks web schema reference demo test check style types page-tests rewritten interpreter bare ordinary-user faults format bench picture clean
PAGE := src/stoker/web/page/index.html
# Python keeps what it has compiled; else each worker of pytest rewrites all tests again.
export PYTHONDONTWRITEBYTECODE :=

help:
	@echo "make demo    show Stoker on four simulated GPUs (about 20 s, after the installation)"
	@echo "make test    run the tests"
	@echo "make check   run format check, lint, type check and tests, as CI does"
	@echo "make faults  inject faults for ten minutes: kills, full disks, failing system calls, damaged files and more"
	@echo "make web     build the page of stoker web (needs node 20.19 or newer, or fetches it)"
	@echo "make format  format the code and fix imports (ruff)"
	@echo "make hooks   let git check format and lint of the files that you commit"
	@echo "make bench   measure Stoker side by side with other programs"
	@echo "make schema  write docs/schema and the types of the page from the code"
	@echo "make reference  write docs/reference.md from the code"
	@echo "make picture  draw the pictures of the documents from real runs (about 6 minutes)"
	@echo "make clean   remove .venv and all build products"

# The product alone; the demonstration needs no development tools.
$(PRODUCT): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Stoker needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	$(BIN)/python -m compileall -q src
	touch $@

# Python compiles of these packages what is imported, when it is.
$(STAMP): $(PRODUCT)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	touch $@

# Only if its sources changed; node comes from PATH, else from a Python package.
$(PAGE): $(STAMP) $(shell find web -type f -not -path '*/node_modules/*' -not -path 'web/test/*')
	$(BIN)/python web/build_page.py --fetch

web: $(PAGE)

demo: $(PRODUCT)
	$(BIN)/stoker run --demo
	@echo
	@echo "Next, in this shell:"
	@echo "  . $(VENV)/bin/activate          # puts stoker on the PATH"
	@echo "  export STOKER_SIM=4x24G        # only on a machine without GPUs"
	@echo "  stoker submit -- sleep 60      # your command in place of sleep 60"
	@echo "  stoker                         # GPUs and jobs"

# Three workers for each core: system tests mostly wait.
PYTEST := $(BIN)/python -m pytest -n 6 --dist loadfile --no-loadscope-reorder
SUPPORT := PYTHONPATH=tests $(BIN)/python -m support

test: $(PAGE)
	$(BIN)/python -m compileall -q src
	$(SUPPORT).interpreter
	$(PYTEST)

# The page is built while types are checked.
NOTES := $(VENV)/.tests-with-optional-programs
check: $(STAMP)
	$(BIN)/python -m compileall -q src
	$(MAKE) --no-print-directory -j 2 -O types page-tests style rewritten interpreter
	rm -f $(NOTES)
	STOKER_TEST_NOTES=$(abspath $(NOTES)) $(PYTEST)
	$(MAKE) --no-print-directory -j 2 -O bare ordinary-user

style: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

page-tests: $(PAGE)
	$(BIN)/python web/build_page.py --fetch --test

# By one process, before several need them. A test that cannot be collected fails later.
rewritten: $(STAMP)
	-@$(BIN)/python -m pytest --collect-only -qq -n 0 > /dev/null

# What tests with several users need, before the tests, whose time is limited.
interpreter: $(STAMP)
	$(SUPPORT).interpreter

# The tests that need optional programs once more without any.
bare:
	$(SUPPORT).bare $(NOTES)

# A part of all tests with the system's own Python.
ordinary-user:
	$(SUPPORT).ordinary_user

# FAULTS takes more options: --list shows the faults, '--only kill-engine --rounds 5' does one of them.
SEED ?= 1
FAULTS_MINUTES ?= 10
faults: $(STAMP)
	$(BIN)/python -m compileall -q src
	PYTHONPATH=tests $(BIN)/python -m support.faults --seed $(SEED) --minutes $(FAULTS_MINUTES) $(FAULTS)

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

hooks: $(STAMP)
	git config core.hooksPath .githooks

BENCHES ?= dispatch submit submit_busy waiting idle long_list packing python_calls gpu_task small grid keystrokes top samples web scale
bench: $(STAMP)
	$(BIN)/python -m compileall -q src
	@for script in $(BENCHES); do echo; echo "== bench/$$script.py"; $(BIN)/python bench/$$script.py || exit; done

schema: $(STAMP)
	$(BIN)/python docs/make_schema.py
	$(BIN)/python docs/make_types.py

reference: $(STAMP)
	$(BIN)/python docs/make_reference.py

picture: $(PAGE)
	$(BIN)/python docs/make_picture.py
	$(BIN)/python docs/make_screenshots.py

clean:
	rm -rf $(VENV) build dist web/node_modules src/stoker/web/page .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
