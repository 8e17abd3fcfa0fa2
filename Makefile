# gpurun. `make demo` and `make test` are all that a newcomer needs; both install what is missing (as root, on Debian or Ubuntu).
PY := .venv/bin/python
SOURCES := $(shell find src -name '*.py')
# How many tests run at once, each file in one place (tests/parallel.py); one more than there are processors, for tests wait.
JOBS ?= $(shell echo $$(($$(nproc) + 1)))
# What a test run leaves out unless asked: the emulated guest and what takes long have their own suites in .ci/run.
PYTEST := $(PY) -m pytest -q -n $(JOBS)
# Modules are compiled once, not by each test that starts Python, also where the environment says otherwise.
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache
unexport PYTHONDONTWRITEBYTECODE

# Debian packages for DEB, or this machine's architecture; wheels and the source archive. All of them into dist/.
DEB :=

.PHONY: demo test test-long unit test-clients test-clients-rootless test-clients-nested test-conformance test-front test-front-all test-packages test-pythons test-systemd
.PHONY: setup-vm test-vm test-vm-all test-selinux test-attacks fuzz demo-kubernetes load-kubernetes load-fleet test-kubernetes build deb dist docs screens bench profile lint format
.PHONY: clean setup setup-test image manifests test-differences security-table

# The GPUs of VENDOR: nvidia (default), amd or intel.
demo: build
	tools/demo $(VENDOR)

# Of tests that do one thing many times it has a part (tests/forms.py); test-long has all of it.
MAKE_TEST := -m "not vm and not slow and not packages"
test: setup-test build lint
	$(PYTEST) $(MAKE_TEST)

test-long: setup-test build lint
	$(PYTEST) --long $(MAKE_TEST)

# The pictures of what commands print, in docs/screens.
screens: setup
	PYTHONPATH=src $(PY) -m tests.screens

# With RUNTIME=/path/to/runtime that runtime alone. Else gpurun and this machine's runc and crun, or RUNTIMES="path ...",
# into docs/conformance.md.
test-conformance: setup-test build
	$(PY) -m tests.conformance.document $(RUNTIMES)

# Every system call of every command fails, one at a time, with both launchers (an hour); GPURUN_FAULTS=N: every Nth of them, N+K from the Kth on.
GPURUN_FAULTS ?= all
.PHONY: test-faults
test-faults: setup-test build
	GPURUN_FAULTS=$(GPURUN_FAULTS) $(PYTEST) --long -rA tests/faults/test_every_call.py
	GPURUN_FAULTS=$(GPURUN_FAULTS) RUNTIME=build/gpurun-fast $(PYTEST) --long -rA tests/faults/test_every_call.py

# The tests of what has changed since BASE (HEAD): a first look, before `make test`.
.PHONY: test-changed
test-changed: setup-test build
	$(PYTEST) $$(tools/test-changed $(BASE))

unit: setup
	$(PYTEST) -m "not native and not clients and not vm and not slow and not packages"

# The pure code under each other Python from 3.11 on that is here: on PATH as python3.N, or of pyenv; with SHORT=1 the newest.
test-pythons:
	@tools/test-pythons $(JOBS) $(SHORT)

# gpurun-fast is the same with a small compiled front, and is not made where there is no C compiler.
build: setup build/gpurun build/gpurun-fast

build/gpurun: $(SOURCES) pyproject.toml
	PYTHONPATH=src $(PY) -m gpurun.builder.launcher --output $@

build/gpurun-fast: $(SOURCES) $(wildcard src/gpurun/launcher/*.c) pyproject.toml
	PYTHONPATH=src $(PY) -m gpurun.builder.front --output $@

# What Docker, Podman and containerd do, with gpurun and with runc, compared line by line, into docs/clients.md; with SHORT=1 a
# third of it, and not into the document.
test-clients: setup-test build
	$(PY) -m tests.clients.document $(if $(SHORT),--short)

# What Podman and Docker do of a user without root, with gpurun, gpurun-fast, crun and runc, into docs/clients.md. It takes Debian's
# packages uidmap, slirp4netns and rootlesskit, which nothing else here needs: without the first all is skipped.
test-clients-rootless: setup-test build
	$(PYTEST) --long -p tests.clients.report --clients-report=build/clients-rootless.json tests/clients/test_rootless.py; rc=$$?; \
	$(PY) -m tests.clients.document rootless build/clients-rootless.json && exit $$rc

# What Docker, Podman and containerd's CRI plugin do in a privileged container of gpurun's, with gpurun, crun and runc in there, into
# docs/clients.md.
test-clients-nested: setup-test build
	$(PYTEST) --long -p tests.clients.report --clients-report=build/clients-nested.json tests/clients/test_nested_operations.py; rc=$$?; \
	$(PY) -m tests.clients.document nested build/clients-nested.json && exit $$rc

# Every published class of escape, and those found here, on gpurun and on this machine's runc and crun, or RUNTIMES="path ...",
# into docs/attacks.md. With RUNTIME=/path/to/runtime that one alone. No run takes longer than ATTACK_LIMIT seconds (1800).
test-attacks: setup-test build
	JOBS=$(JOBS) $(PY) -m tests.attacks.document $(RUNTIMES)

# What a process sees of itself under gpurun and under this machine's runc and crun, or PEERS="path ...": under every config
# there is; `make test` has one of each kind.
test-differences: setup-test build
	$(PYTEST) tests/differences

# What each process of gpurun has at each stage, into docs/security.md.
security-table: setup-test build
	PYTHONPATH=src $(PY) -m tests.attacks.privileges

# Random and damaged input to every reader: CASES for each, and FUZZ_SECONDS for those of the compiled front under the
# sanitizers; one that takes ten seconds fails.
fuzz: setup-test
	FUZZ_CASES=$(or $(CASES),20000) FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600) $(PYTEST) -rP \
	  $(wildcard tests/attacks/test_fuzz*.py) $(wildcard tests/launcher/test_front_fuzz*.py)

# The compiled front in the launcher's place: what it answers or starts itself, and attacks; with -all every suite of
# containers, in the long form.
FRONT := $(addprefix tests/lifecycle/test_,callers.py cgroup.py descriptors.py exec.py hooks.py killed_cgroup.py lookup.py \
  pause.py private_mounts.py process.py run.py state.py streams.py terminal.py) \
  $(addprefix tests/conformance/test_,operations.py runtime.py) \
  $(addprefix tests/faults/test_,killed.py killed_gpu.py killed_step.py undo.py unreadable.py) tests/gpu/test_containers.py \
  tests/hook/test_hostile_images.py
# Again, each exec preceded by one like it (tests/native/prime.py): so the front does it itself.
PRIMED := $(addprefix tests/lifecycle/test_exec,.py _isolation.py _process.py) \
  $(addprefix tests/lifecycle/test_,descriptors.py lookup.py pause.py process.py seccomp.py streams.py) \
  $(addprefix tests/attacks/test_,caller_secrets.py cve_2019_5736.py cve_2022_29162.py doors.py tracer.py)
FRONT_ALL := tests/attacks tests/lifecycle tests/conformance tests/faults tests/gpu tests/hook tests/native

test-front: setup-test build
	RUNTIME=build/gpurun-fast $(PYTEST) $(FRONT) tests/attacks -m "native and not slow"
	RUNTIME=build/gpurun-fast PRIMED=1 $(PYTEST) $(PRIMED) -m "native and not slow"

test-front-all: setup-test build
	RUNTIME=build/gpurun-fast $(PYTEST) --long $(FRONT_ALL) -m "native and not slow"

# What needs systemd, under one that a bed starts on this machine's kernel. Not several at once: it reloads, and is executed again.
test-systemd: setup-test build
	@tests/beds/systemd-bed -- $(PY) -m pytest -q tests/systemd

# What needs all controllers, in an emulated guest (about a minute to build, once): each limit by its effect and
# an operation of each client; with -all everything, some fifteen minutes, and docs/clients.md.
GUEST := tests/systemd tests/clients/test_operations.py tests/clients/test_cdi.py tests/lifecycle/test_apparmor.py \
	tests/lifecycle/test_apparmor_caller.py tests/lifecycle/test_yama.py

# The guest itself, built and saved where that has not been done.
setup-vm: setup-test
	@tests/beds/vm-suite --prepare

test-vm: setup-vm
	@tests/beds/vm-suite -m short $(GUEST)

# In a guest of its own: labels, and what Debian's SELinux policy refuses, beside runc and crun (ten minutes, once built).
test-selinux: setup-test
	@tests/beds/vm-selinux tests/lifecycle/test_selinux*.py tests/lifecycle/test_lsm.py

test-vm-all: setup-test
	@tests/beds/vm-suite --document --long $(GUEST)

deb:
	@tools/deb $(DEB)

dist: setup
	@tools/dist

# The image of the chart's pods, from Debian packages, into dist/; IMAGE=name:tag calls it otherwise.
image:
	@tools/image $(IMAGE)

# deploy/kubernetes from charts/gpurun.
manifests: setup
	@tools/manifests

# Packages installed, upgraded and purged: in an overlay of this machine's system, and without SHORT in fresh Debian 12, 13 and
# unstable trees, where README's own lines are executed too (ten minutes each), and under every Python that is here.
test-packages: setup-test build
	$(PYTEST) -m "packages$(if $(SHORT), and not slow)" tests/packages

# gpurun beside the runc and crun on PATH, or beside RUNTIMES="path ..."; BENCH=--short for a look.
bench: setup-test build
	PYTHONPATH=src $(PY) -m benchmarks $(BENCH) $(RUNTIMES)

# On a real Kubernetes, from the programs in KUBERNETES_BINARIES (tests/beds/README.md); the chart's pods too, after `make image`.
CLUSTER := $(addprefix test_cluster_,rights.py plugin.py dra.py pods.py chart.py manifests.py features.py makers.py mig.py shares.py) test_dra_slices.py
test-kubernetes: setup-test build
	$(PY) tests/beds/kubernetes-bed --gpus 2 $(addprefix --image ,$(wildcard dist/gpurun-image_*.tar)) -- \
	  $(PY) -m pytest -q $(addprefix tests/kubernetes/,$(CLUSTER))

# The device plugin on a simulated driver, with the tests' kubelet: two pods, a sick GPU, replicas, a restart.
demo-kubernetes: setup-test
	@PYTHONPATH=src:. $(PY) tools/demo_kubernetes.py

# Many pods at once for a node's device plugin, the kubelet restarted meanwhile; LOAD="pods at-once".
load-kubernetes: setup-test
	PYTHONPATH=src $(PY) -m tests.kubernetes.load $(or $(LOAD),20000 16)

# What the parts of 200 nodes ask of the API server of the bed, which is killed meanwhile; FLEET="nodes seconds".
load-fleet: setup-test build
	$(PY) tests/beds/kubernetes-bed -- env PYTHONPATH=src $(PY) -m tests.kubernetes.fleet $(or $(FLEET),200 300)

# Where the time goes: imports, system calls, page faults of each command.
profile: setup-test build
	PYTHONPATH=src $(PY) -m benchmarks.profile

# The documents as a site, build/site; a link that leads nowhere is an error. In an environment of its own: nothing else needs it.
docs: setup
	@[ -x build/docs-env/bin/mkdocs ] || { $(PY) -m venv build/docs-env && build/docs-env/bin/pip -q install 'mkdocs-material>=9'; }
	NO_MKDOCS_2_WARNING=1 build/docs-env/bin/mkdocs build --strict

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
