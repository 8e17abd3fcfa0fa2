"""Fixtures shared by all suites.

``RUNTIME`` names the runtime under test (default ``build/gpurun``): the suites of real containers are validated by running
them on runc and crun, so a failure there is a failure of the test.  What only gpurun does is marked ``gpurun_only``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Else each child that is forked in a process which has used gRPC gets threads of it, and setns(2) into a mount namespace is
# EINVAL then: a worker that has run tests of Kubernetes could enter no bed any more.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import pytest

from gpurun.log import _Log
from tests import forms
from tests.fixtures import host, in_mount_namespace, make_sim, rootfs, sim  # noqa: F401
from tests.native.abilities import missing
from tests.native.bed import Bed, BedUnavailable
from tests.native.bundle import Bundle, Config
from tests.native.leaks import Leaks
from tests.native.others import new_bundle, runtime_at
from tests.native.runtime import REFUSED, Runtime

REPOSITORY = Path(__file__).resolve().parent.parent
MakeBundle = Callable[..., Bundle]


def runtime_path() -> str:
    return os.path.abspath(os.environ.get("RUNTIME") or REPOSITORY / "build/gpurun")


def runtime_version() -> str:
    """Name and version of the runtime under test, like ``runc 1.1.5``; empty while it has not been built."""
    try:
        said = subprocess.run([runtime_path(), "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""  # the fixture `runtime` says what is missing
    return said.partition("\n")[0].replace(" version", "")


def pytest_addoption(parser: pytest.Parser) -> None:
    forms.add_option(parser)


def check_build() -> None:
    """Fail where the program under test is older than its source: another program would be tested."""
    program = Path(runtime_path())
    suffixes = (".py", ".c") if program.name == "gpurun-fast" else (".py",)
    if program.parent != REPOSITORY / "build" or not program.exists():
        return  # the fixture `runtime` says what is missing
    made = program.stat().st_mtime
    for path in (REPOSITORY / "src").rglob("*.*"):
        if path.suffix in suffixes and path.stat().st_mtime > made:
            older = f"{program.relative_to(REPOSITORY)} is older than {path.relative_to(REPOSITORY)}"
            raise pytest.UsageError(f"{older}: run `make build` first")


def pytest_configure(config: pytest.Config) -> None:
    forms.configure(config)
    # Under nohup(1), or as a job of a shell in the background, all that tests start would ignore these, daemons that are to
    # end by them too.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    config.addinivalue_line("markers", "gpurun_only: what no other runtime does; skipped when RUNTIME is another one")
    config.addinivalue_line(
        "markers", 'not_on(version, reason): runtimes whose version begins like that ("runc 1.1") have a known fault here'
    )
    config.addinivalue_line(
        "markers",
        "takes(call, loss): what is lost without that system call (docs/refused-calls.md): skipped under such a REFUSED",
    )
    config.addinivalue_line("markers", "attack(class, what): an attack; docs/attacks.md lists it")
    config.addinivalue_line(
        "markers", "falls(version, reason, always=True): an attack that succeeds on runtimes whose version begins like that"
    )
    config.addinivalue_line(
        "markers", "needs(name, ...): systemd, or cgroup v2 controllers by name (tests/native/abilities.py)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    forms.choose(config, items)
    if not hasattr(config, "workerinput") and any(item.get_closest_marker("native") for item in items):
        check_build()
    name, version = os.path.basename(runtime_path()), runtime_version()
    for item in items:
        if name not in ("gpurun", "gpurun-fast") and item.get_closest_marker("gpurun_only"):
            item.add_marker(pytest.mark.skip(reason="only gpurun does this"))
        for marker in item.iter_markers("not_on"):
            if version.startswith(marker.args[0]):
                item.add_marker(pytest.mark.skip(reason=marker.kwargs["reason"]))
        for marker in item.iter_markers("takes"):
            if marker.args[0] in REFUSED:
                item.add_marker(pytest.mark.skip(reason=f"without {marker.args[0]}(2) {marker.args[1]}"))
        for marker in item.iter_markers("falls"):  # the attack works where it must: it fails only where it is parried
            if version.startswith(marker.args[0]):
                always = marker.kwargs.get("always", True)
                item.add_marker(
                    pytest.mark.xfail(reason=f"falls: {marker.kwargs['reason']}", strict=always, raises=AssertionError)
                )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for need in (need for marker in item.iter_markers("needs") for need in marker.args):
        if why := missing(need):
            pytest.skip(why)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Called once, before the workers of ``-n NUMBER`` start, which cannot end the run with a sentence."""
    if "not native" not in config.option.markexpr:
        check_build()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Called for ``-n NUMBER`` alone: pytest-xdist need not be there."""
    from tests.parallel import ByFile

    return ByFile(config, log)


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """A command that a test calls in this process may leave the log at its ``--log``: later tests would see no warning."""
    kept = {**vars(_Log), "waiting": [*_Log.waiting]}
    yield
    for name in ("fd", "json", "debug", "waiting", "copy", "copy_debug", "send"):
        setattr(_Log, name, kept[name])


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    """The place where real containers can run; see :mod:`tests.native.bed`."""
    try:
        made = Bed()
    except BedUnavailable as e:
        pytest.skip(str(e))
    yield made
    made.close()


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """A directory for bundles and state that a user namespace's root can reach (pytest's own temporary ones are 0700)."""
    directory = Path(tempfile.mkdtemp(prefix="gpurun-test.", dir="/var/tmp"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def busybox(place: Path) -> Path:
    """A static busybox on the file system of the bundles, to be linked into rootfs."""
    found = shutil.which("busybox")
    if not found:
        pytest.skip("busybox is not installed (Debian: busybox-static)")
    return Path(shutil.copy(found, place / "busybox"))


@pytest.fixture
def runtime(bed: Bed, place: Path, request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """The runtime under test, with a state directory of its own; see :class:`tests.native.runtime.Runtime`."""
    path = runtime_path()
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is missing: run `make build` first, or set RUNTIME")
    with runtime_at(path, bed, place) as made:
        yield made


@pytest.fixture
def leaks(bed: Bed, runtime: Runtime) -> Iterator[Leaks]:
    """Fails the test when its containers leave anything behind; see :mod:`tests.native.leaks`."""
    before = Leaks(bed, runtime)
    yield before
    before.check()


@pytest.fixture
def bundle(runtime: Runtime, leaks: Leaks, busybox: Path) -> MakeBundle:
    """``bundle()`` makes a bundle with a busybox rootfs, watched for changes; ``bundle(config)`` with another config."""

    def make(config: Config | None = None) -> Bundle:
        made = new_bundle(runtime, busybox, config)
        leaks.watch(made)
        return made

    return make
