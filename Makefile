# Two commands need nothing else first: `make demo` and `make test`.

PYTHON ?= python3
# The package takes a range of torch; here it is pinned, so that pip takes the CPU build at hand.
TORCH  := torch==2.13.0
BIN    := .venv/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
# Threads that wait asleep: spinning ones slow each other down where cores are shared.
export OMP_WAIT_POLICY ?= passive

.PHONY: demo test check format docs paper wheel clean

# The three networks that the package ships, to 99 % of their accuracy with 95 % confidence: for ONNX Runtime on
# this machine, each as a file that is proven to be the model that was judged, beside float's; then one by bits.
# On networks this small two threads wait for each other more than they help.
demo: export OMP_NUM_THREADS ?= 1
demo: .venv/.demo
	@for network in resnet mobilenet transformer; do \
		echo; echo "── zoo:fashion-$$network ──"; \
		$(BIN)/bitsect quantize zoo:fashion-$$network --target 99% --out runs/demo-$$network || exit 1; \
	done
	@echo; echo "── zoo:fashion-resnet, by bits ──"
	@$(BIN)/bitsect quantize zoo:fashion-resnet --target 99% --for bits --out runs/demo-bits

# Two tests at a time, one thread each; doctests of the package among them.
test: check
	$(BIN)/python -m pytest -n 2

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation site, in site/; a warning is an error.
docs: .venv/.dev
	$(BIN)/mkdocs build --strict --quiet

# The paper's tables and figures for the networks of runs: make paper RUNS="runs/resnet20 runs/mobilenetv2".
paper: .venv/.dev
	$(BIN)/python -m paper all $(RUNS) --out runs/paper

wheel: .venv/.dev
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf .venv dist build site

.venv/.venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bitsect needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(PIP) install $(TORCH)
	touch $@

.venv/.demo: .venv/.venv pyproject.toml
	$(PIP) install $(TORCH) --editable .
	touch $@

.venv/.dev: .venv/.venv pyproject.toml
	$(PIP) install $(TORCH) --editable '.[dev]'
	touch $@ .venv/.demo
