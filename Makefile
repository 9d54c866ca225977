# Every target does the set-up it needs. Times: two CPU cores, after set-up.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
TABLE  ?=
SCALE  ?= auto
JOBS   ?=
ARGS   ?=
TORCH  ?=
RUN     = $(PY) scripts/reproduce.py $(if $(JOBS),--jobs $(JOBS)) $(TABLE) scale=$(SCALE) $(ARGS)

# Two workers with as many BLAS threads as cores each would only be in each other's way.
ONE     = OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

# macOS has one build of torch only.
ifeq ($(shell uname),Darwin)
TORCH :=
endif

# PyTorch's own index of CPU builds; without TORCH=cpu, Linux gets the build for CUDA, which runs on CPUs too.
TORCH_ARGS_cpu := --extra-index-url https://download.pytorch.org/whl/cpu
TORCH_SIZE_cpu := 0.5 GB to download, 1.6 GB on disk
TORCH_SIZE_    := up to 3 GB to download where pip takes the CUDA build of torch (TORCH=cpu takes 0.5 GB)

.DEFAULT_GOAL := help
.PHONY: help setup reproduce-all reproduce plan smoke tables accept dashboard test test-fast lint clean named

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile
	@echo
	@echo '  TABLE="a b"  these tables only      SCALE=smoke|cpu|full|auto   JOBS=n  workers'
	@echo '  ARGS="params.head_dim=16"  any key  TORCH=cpu  at set-up: the small build of torch'

setup: $(VENV)/.current ## .venv with everything, skipped when it is current (1 to 10 min)

$(VENV)/.current: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'attnrepro needs Python 3.11 or newer: make setup PYTHON=/path/to/python3.11'; exit 2; }
	@echo 'setting up $(VENV): $(TORCH_SIZE_$(TORCH))'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --disable-pip-version-check $(TORCH_ARGS_$(TORCH)) \
	  $(if $(TORCH),'torch==2.13.0+$(TORCH)') -c constraints.txt -e '.[dev]'
	@touch $@

reproduce-all: setup ## every table, reports and dashboard; finished cells are reused (2 min)
	@$(PY) scripts/reproduce.py $(if $(JOBS),--jobs $(JOBS)) scale=$(SCALE) $(ARGS)

named:
	@test -n '$(TABLE)' || { echo 'which table? make reproduce TABLE=<table>; all of them: make reproduce-all'; exit 2; }

reproduce: named setup ## the tables in TABLE="a b" with what they need (make plan says how long)
	@$(RUN)

plan: setup ## what reproduce would run and reuse, and for how long (1 s)
	@$(PY) scripts/reproduce.py --dry-run $(TABLE) scale=$(SCALE) $(ARGS)

smoke: setup ## every table once through at the smallest size, leaves nothing behind (7 s)
	@$(PY) scripts/smoke.py $(TABLE)

tables: setup ## results/tables, REPORT.md, README block and dashboard from recorded rows (3 s)
	@$(PY) scripts/tables.py

dashboard: tables ## results/dashboard.html, and where it lies (3 s)
	@echo "open file://$${ATTNREPRO_RESULTS:-$(CURDIR)/results}/dashboard.html"

accept: setup ## your finished cells become the committed reference, all or TABLE (1 s)
	@$(PY) scripts/accept.py $(TABLE)

test: lint ## lint, types, all tests, smoke (3 min)
	@$(ONE) $(PY) -m pytest -n auto
	@$(PY) scripts/smoke.py

test-fast: setup ## the tests that need no long run (1 min)
	@$(ONE) $(PY) -m pytest -n auto -m 'not slow' -q

lint: setup ## ruff and mypy --strict (15 s)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

clean: ## caches and build files; never results
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	@find src experiments scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
