# Two commands: `make demo` and `make test`. Both set up .venv on first use.
PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
STAMP := .venv/.installed
RELEASE := lightning transformers several_machines packaging communication docs kernels
# Triton's interpreter runs the CUDA kernels without a GPU: 285 MB, so for the release tests alone, in a folder of its own where
# nothing else sees it. torch's CUDA builds bring their own, and pin it: that is why it is not in constraints.txt.
TRITON := triton==3.9.0; python_version >= '3.11'
INTERPRETER := $(if $(filter Linux,$(shell uname -s)),build/triton/.installed)
# laplace-torch asks for torchvision, which the tests do without and whose build must match that of torch
LAPLACE := laplace-torch asdfghjkl backpack-for-pytorch curvlinops-for-pytorch einconv einops linear_operator opt_einsum unfoldNd

.PHONY: demo test test-release test-all lint docs bench clean

demo: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/swap.py --quick --device cpu --tasks qm9 --seeds 1 --workers $(WORKERS) --out runs/demo/runs --results runs/demo

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# What is handed out, with the programs of other people: DDP under Lightning, two hosts of which one dies, the wheel in a clean
# environment, the traffic between processes, the built site in a browser, the code on its pages, the CUDA kernels in an
# interpreter. A quarter of an hour, most of it the interpreter.
test-release: $(STAMP) $(INTERPRETER)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m slow $(RELEASE:%=tests/test_%.py)

test-all: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "slow or not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# The site, and what can be wrong with prose: links, names, figures.
docs: $(STAMP)
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html -d build/doctrees docs build/docs
	$(BIN)/python -m pytest tests/check_pages.py

bench: $(STAMP)
	$(BIN)/python benchmarks/solve_time.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/vocabulary.py
	$(BIN)/python benchmarks/step_overhead.py
	$(BIN)/python benchmarks/sweep_throughput.py
	$(BIN)/python benchmarks/communication.py
	$(BIN)/python benchmarks/swap.py --quick

clean:
	rm -rf .venv build dist runs .pytest_cache .ruff_cache

build/triton/.installed: $(STAMP)
	mkdir -p build/triton
	$(BIN)/python -c "import triton" 2>/dev/null || \
	  $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/triton "$(TRITON)"
	touch $@

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[experiments,qm9,iv,dask,sklearn,lightning,transformers,skorch,docs,dev]"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps $(LAPLACE)
	touch $(STAMP)
