# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Threads that sleep instead of spinning: on shared cores spinning ones cost many times more.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test test-slow lint docs bench install clean

demo: $(VENV)/installed
	$(BIN)/python -m difformer demo

# Two processes of one thread each: most tests are too small to share among threads.
test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

test-slow: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m slow --timeout 1500

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Warnings are errors; the pages are in build/docs.
docs: $(VENV)/installed
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks

install: $(VENV)/installed

# The stamp is written last, so that an interrupted installation is taken up again.
$(VENV)/installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV): a few minutes the first time."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist
