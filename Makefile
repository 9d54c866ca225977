# Every target does the set-up it needs. Times: two CPU cores, after set-up.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
TABLE  ?=
SCALE  ?= auto
JOBS   ?=
ARGS   ?=
TORCH  ?=
CLAIM  ?=
POST   ?=
PORT   ?= 8000
# An id is no program: what make why is given is neither expanded by make nor read by the shell.
unexport CLAIM
# The Python of the GPU machine, for wheels of compiled packages.
GPU_PYTHON ?= 3.12
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
.PHONY: help setup reproduce-all reproduce plan smoke tables accept verify check why dashboard figures status test test-fast lint \
        wandb-sync wandb-rebuild wandb-dashboard gpu-wheels clean named

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile
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

reproduce-all: setup ## every table, reports and dashboard; finished cells are reused (50 min)
	@$(PY) scripts/reproduce.py $(if $(JOBS),--jobs $(JOBS)) scale=$(SCALE) $(ARGS)

named:
	@test -n '$(TABLE)' || { echo 'which table? make reproduce TABLE=<table>; all of them: make reproduce-all'; exit 2; }

reproduce: named setup ## the tables in TABLE="a b" with what they need (make plan says how long)
	@$(RUN)

plan: setup ## what reproduce would run and reuse, and for how long (1 s)
	@$(PY) scripts/reproduce.py --dry-run $(TABLE) scale=$(SCALE) $(ARGS)

smoke: setup ## every table once through at the smallest size, leaves nothing behind (60 s)
	@$(PY) scripts/smoke.py $(TABLE)

tables: setup ## results/tables, REPORT.md, README block and dashboard from recorded rows (30 s)
	@$(PY) scripts/tables.py

ifdef SERVE
dashboard: setup ## results/dashboard.html (30 s); SERVE=1 serves it while a sweep runs (PORT=8000)
	@$(PY) scripts/dashboard.py --port $(PORT) --scale $(SCALE)
else
dashboard: tables
	@echo "open file://$${ATTNREPRO_RESULTS:-$(CURDIR)/results}/dashboard.html"
endif

figures: setup ## results/figures: charts as SVG and PDF, printed values as LaTeX and Markdown, all or TABLE (1 min)
	@$(PY) scripts/figures.py $(TABLE)

status: setup ## cells done, running, failed and open, and verdicts of every table at SCALE (10 s)
	@$(PY) scripts/status.py --scale $(SCALE) $(TABLE)

accept: setup ## your finished cells become the committed reference, all or TABLE (1 min)
	@$(PY) scripts/accept.py $(TABLE)

verify: setup ## is everything committed consistent? rows, claims, tables, README block (30 s)
	@$(PY) scripts/verify.py

check: setup ## your rows against the committed reference, all or TABLE (a second a table)
	@$(PY) scripts/check.py $(TABLE)

why: setup ## CLAIM=<id>: where it is printed, our verdict, the command that measures it again (3 s)
	@$(PY) scripts/why.py '$(subst ','\'',$(strip $(value CLAIM)))'

wandb-sync: setup ## send what Weights & Biases lacks of your runs: offline, interrupted, server away (1 s a run)
	@$(PY) scripts/wandb_sync.py

wandb-rebuild: setup ## the whole project in Weights & Biases from recorded rows, all or TABLE (2 s a run)
	@$(PY) scripts/wandb_rebuild.py $(TABLE) $(ARGS)

wandb-dashboard: setup ## workspace and report for Weights & Biases as JSON; POST=1 sends them (10 s)
	@$(PY) scripts/wandb_dashboard.py $(if $(POST),--post) $(ARGS)

test: lint ## lint, types, all tests, verify, smoke (18 min)
	@$(ONE) $(PY) -m pytest -n auto
	@$(PY) scripts/verify.py
	@$(PY) scripts/smoke.py

test-fast: setup ## the tests that need no long run (3 min)
	@$(ONE) $(PY) -m pytest -n auto -m 'not slow' -q

lint: setup ## ruff and mypy --strict (15 s)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

# Without dependencies: torch and what comes with it are the GPU machine's own. The first three are Python alone, antlr4
# is built here because there is no wheel of it; the other two are compiled, for glibc 2.17 or later on x86-64.
gpu-wheels: ## build/gpu-wheels: what scripts/gpu_check.sh may miss on a machine without network (GPU_PYTHON=3.12)
	@rm -rf build/gpu-wheels
	@$(PYTHON) -m pip wheel --disable-pip-version-check -q --no-deps -c constraints.txt -w build/gpu-wheels \
	  hydra-core omegaconf antlr4-python3-runtime
	@$(PYTHON) -m pip download --disable-pip-version-check -q --no-deps -c constraints.txt -d build/gpu-wheels \
	  --only-binary :all: --python-version $(GPU_PYTHON) \
	  $(foreach glibc,2_17 2_27 2_28,--platform manylinux_$(glibc)_x86_64) --platform manylinux2014_x86_64 PyYAML scipy
	@ls -sh1 build/gpu-wheels

clean: ## caches and build files; never results
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	@find src experiments scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
