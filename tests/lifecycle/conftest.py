"""What several suites of this room hold: a terminal's other end, the place of a checkpoint, a container to execute in."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native import apparmor
from tests.native.checkpoint import why_not
from tests.native.execs import FOREVER
from tests.native.leaks import Leaks
from tests.native.others import another
from tests.native.runtime import Container, Runtime
from tests.native.selinux import all_logged, as_an_engine, peer, sealed  # noqa: F401
from tests.native.terminal import Listener


@pytest.fixture(params=["runtime", "runc"])
def either(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[Runtime]:
    """The runtime under test, and runc beside it: what a test says is true of both."""
    if request.param == "runtime":
        yield runtime
        return
    with another("runc", runtime.bed, runtime.directory.parent) as made:
        yield made


@pytest.fixture
def in_bed(runtime: Runtime) -> Callable[..., None]:
    """Runs a program in the mount namespace of the bed."""

    def run(*argv: str) -> None:
        subprocess.run(argv, check=True, preexec_fn=runtime.bed.enter())

    return run


@pytest.fixture
def listener(runtime: Runtime) -> Iterator[Listener]:
    made = Listener(runtime.directory / "console.sock")
    yield made
    made.socket.close()


@pytest.fixture
def image(runtime: Runtime, leaks: Leaks) -> Path:
    """Where to save to; the containers of these tests write into their rootfs.  Skips the test where CRIU cannot be used."""
    if why_not():
        pytest.skip(why_not())
    leaks.allow_rootfs_changes()
    return runtime.directory / "image"


@pytest.fixture
def container(runtime: Runtime, bundle: MakeBundle) -> Container:
    """A container that runs until it is deleted."""
    made = runtime.start(bundle().sh(FOREVER))
    made.wait_for("up")
    return made


@pytest.fixture
def load(tmp_path: Path) -> Iterator[apparmor.Load]:
    """Loads profiles of AppArmor for one test."""
    yield from apparmor.loader(tmp_path)
