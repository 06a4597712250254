# Two commands: `make demo` and `make test`. Both set up .venv on first use.
PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
STAMP := .venv/.installed
RELEASE := lightning transformers several_machines packaging communication docs
# laplace-torch asks for torchvision, which the tests do without and whose build must match that of torch
LAPLACE := laplace-torch asdfghjkl backpack-for-pytorch curvlinops-for-pytorch einconv einops linear_operator opt_einsum unfoldNd

.PHONY: demo test test-release test-all lint docs bench clean

demo: $(STAMP)
	$(BIN)/closedform paper qm9 --quick

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# What is handed out, with the programs of other people: DDP under Lightning, two hosts of which one dies, the wheel in a clean
# environment, the traffic between processes, the built site in a browser, the code on its pages. One to two minutes.
test-release: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m slow $(RELEASE:%=tests/test_%.py)

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
	$(BIN)/python benchmarks/swap.py --quick

clean:
	rm -rf .venv build dist runs .pytest_cache .ruff_cache

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[experiments,qm9,iv,dask,sklearn,lightning,transformers,skorch,docs,dev]"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps $(LAPLACE)
	touch $(STAMP)
