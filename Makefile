# Two commands: `make demo` and `make test`. Both set up .venv on first use.
PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-all lint docs bench clean

demo: $(STAMP)
	$(BIN)/closedform paper qm9 --quick

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-all: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "slow or not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html -d build/doctrees docs build/docs

bench: $(STAMP)
	$(BIN)/python benchmarks/solve_time.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/step_overhead.py
	$(BIN)/python benchmarks/sweep_throughput.py
	$(BIN)/python benchmarks/communication.py

clean:
	rm -rf .venv build dist runs .pytest_cache .ruff_cache

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[experiments,qm9,iv,dask,sklearn,lightning,transformers,skorch,docs,dev]"
	touch $(STAMP)
