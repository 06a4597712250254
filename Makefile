# Two commands: `make demo` and `make test`. Both set up .venv on first use.
PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-all lint bench clean

demo: $(STAMP)
	$(BIN)/closedform paper qm9 --quick

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

test-all: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "slow or not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python benchmarks/solve_time.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/step_overhead.py
	$(BIN)/python benchmarks/sweep_throughput.py

clean:
	rm -rf .venv build dist runs .pytest_cache .ruff_cache

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[experiments,qm9,dask,sklearn,dev]"
	touch $(STAMP)
