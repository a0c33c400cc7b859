# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Threads sleep while they wait; on shared cores spinning costs many times more.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test test-slow test-kernels lint docs bench dist test-dist install clean

demo: $(VENV)/installed
	$(BIN)/python -m difformer demo

# Two processes with one thread each: most tests are too small for more.
test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

test-slow: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m slow --timeout 1500

# The kernels for GPUs, in Triton's interpreter, which needs no GPU.
test-kernels: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/triton triton==3.9.0
	TRITON_INTERPRET=1 PYTHONPATH=build/triton OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/kernels/test_gpu_layer.py

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Writes build/docs; warnings are errors.
docs: $(VENV)/installed
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks

# Source distribution and wheel in dist/. Time stamps are those of the last commit, so the wheel is reproducible.
dist: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dist]"
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*

# Builds the wheel twice, compares the two, installs it into a clean environment and runs the demo from there.
test-dist: dist
	mkdir -p build && mv dist/*.whl build/first.whl
	$(MAKE) dist
	cmp build/first.whl dist/*.whl
	rm -rf build/clean && $(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	build/clean/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build && clean/bin/difformer demo

install: $(VENV)/installed

# The stamp is written last, so that an interrupted installation starts again.
$(VENV)/installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV): a few minutes the first time."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist
