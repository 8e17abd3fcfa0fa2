# gpurun. `make demo` and `make test` are all that a newcomer needs; both install what is missing (as root, on Debian or Ubuntu).
PY := .venv/bin/python
SOURCES := $(shell find src -name '*.py')
# What a test run leaves out unless asked: the emulated guest and what takes long have their own suites in .ci/run.
PYTEST := $(PY) -m pytest -q

.PHONY: demo test test-clients test-conformance test-vm unit build bench profile lint format clean setup setup-test

demo: build
	tools/demo

test: setup-test build lint
	$(PYTEST) -m "not vm and not slow"

# With RUNTIME=/path/to/runtime that runtime alone. Else gpurun and this machine's runc and crun, or RUNTIMES="path ...",
# into docs/conformance.md.
test-conformance: setup-test build
	$(PY) -m tests.conformance.document $(RUNTIMES)

unit: setup
	$(PYTEST) -m "not native and not clients and not vm and not slow"

# gpurun-fast is the same with a small compiled front, and is not made where there is no C compiler.
build: setup build/gpurun build/gpurun-fast

build/gpurun: $(SOURCES) pyproject.toml
	PYTHONPATH=src $(PY) -m gpurun.launcher.build --output $@

build/gpurun-fast: $(SOURCES) src/gpurun/launcher/front.c pyproject.toml
	PYTHONPATH=src $(PY) -m gpurun.launcher.front --output $@

# What Docker, Podman and containerd do, with gpurun and with runc, compared line by line, into docs/clients.md.
test-clients: setup-test build
	$(PY) -m tests.clients.document

# What needs systemd and all controllers, in an emulated guest (about a minute to build, once; then some to run).
test-vm: setup-test
	@tests/beds/vm-suite tests/vm tests/clients/test_operations.py tests/clients/test_cdi.py

# Everything, beside the runc and crun on PATH; BENCH=--short for a look, RUNTIMES="path ..." for others.
bench: setup-test build
	PYTHONPATH=src $(PY) -m benchmarks $(BENCH) $(RUNTIMES)

# Where the time goes: imports, system calls, page faults of each command.
profile: setup-test build
	PYTHONPATH=src $(PY) -m benchmarks.profile

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format: setup
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

setup:
	@tools/setup

setup-test:
	@tools/setup --test

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +
