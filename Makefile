# Bytes over Bandwidth. `make book` builds what changed and prints an address to open;
# `make test` proves it. Everything happens inside .venv and _build; both are git-ignored.
#
#   PYTHON=python3.12 make book        another interpreter
#   TORCH_INDEX=<url> make book        take torch from an index of your choice (CPU-only wheels)

SHELL := bash
.SHELLFLAGS := -o pipefail -ec
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules
.NOTPARALLEL:

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
WORKERS ?= 2
NAME ?=

ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
PY := $(BIN)/python
INSTALLED := $(VENV)/.installed
MODEL := $(VENV)/.model
NOTEBOOK_DIRS = $(wildcard chapters solutions)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Threads that wait, sleep: spinning costs a factor of ten as soon as anything else runs.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help book test lint unit nbval check notebooks lab bench sabotage figures sheets site clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- what everything needs ------------------------------------------------------------------

$(INSTALLED): pyproject.toml constraints.txt
	@echo "[1/2] environment: $(VENV) from $$($(PYTHON) --version 2>&1), pinned packages (minutes, once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: PYTHON=python3.11 make ...")'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --progress-bar off $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	    -c constraints.txt -e '.[book,test]' \
	  | awk '/^Collecting/ { if (++n % 25 == 0) { print "      " n " packages found"; fflush() } } \
	         /^Downloading/ && / MB/ { print "      " $$2, $$3, $$4; fflush() } \
	         /^Installing collected/ { print "      unpacking"; fflush() }'
	@touch $@

$(MODEL): $(INSTALLED)
	@echo "[2/2] model: SmolLM2-135M-Instruct (98 MB, once)"
	@$(PY) -m refimpl fetch
	@touch $@

# --- for readers ----------------------------------------------------------------------------

book: $(MODEL) ## execute every chapter, build the site, print its address
	@$(PY) -m labkit.build book

lab: $(MODEL) ## open the notebooks in JupyterLab
	@PYTHONWARNINGS='ignore:IProgress not found' $(BIN)/jupyter lab --notebook-dir=.

site: $(MODEL) ## render the site from what is already executed
	@$(PY) -m labkit.build site

# --- the proof ------------------------------------------------------------------------------

test: $(MODEL) ## everything: lint, tests, then every notebook cell under nbval
	@$(MAKE) --no-print-directory lint unit nbval

lint: $(INSTALLED)
	@echo "lint: ruff on modules and notebooks"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

unit: $(MODEL)
	@echo "tests: modules and project"
	@$(PY) -m pytest tests -n $(WORKERS) --dist loadfile --no-loadscope-reorder

nbval: $(MODEL)
	@echo "notebooks: $(NOTEBOOK_DIRS) under nbval"
	@$(if $(NOTEBOOK_DIRS),$(PY) -m pytest $(NOTEBOOK_DIRS) -n $(WORKERS) --dist loadfile,echo "no notebooks yet")

check: $(MODEL) ## the short loop: only what your changes touch
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m labkit.build check
	@$(PY) -m labkit.changed | xargs $(PY) -m pytest -n $(WORKERS) --dist loadfile

sabotage: $(MODEL) ## perturb every refimpl function a chapter uses; nbval must turn red
	@$(PY) -m labkit.sabotage $(NAME)

# --- for authors ----------------------------------------------------------------------------

notebooks: $(MODEL) ## rebuild the committed notebooks from their .md sources (NAME=01_… for one)
	@$(PY) -m labkit.build notebooks $(NAME)

figures: $(INSTALLED) ## redraw figures/svg
	@$(PY) -m figures

sheets: $(MODEL) ## print the interviewer's sheets: _build/sheets/NN_name.pdf
	@$(PY) -m labkit.sheets

bench: $(MODEL) ## benchmarks beside peers, ratios within one run
	@for script in $(sort $(wildcard benchmarks/[a-z]*.py)); do $(PY) $$script; done

clean: ## remove what was built (keeps the environment)
	rm -rf _build .pytest_cache .ruff_cache .hypothesis

distclean: clean ## remove the environment as well
	rm -rf $(VENV) *.egg-info
