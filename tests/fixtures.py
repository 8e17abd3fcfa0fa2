"""Fixtures of several suites: a simulated driver, a mount namespace for a function, an image (see conftest.py)."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from gpurun.errors import GpurunError
from gpurun.linux.mount import MS_PRIVATE, MS_REC, mount
from gpurun.linux.process import CLONE_NEWNS, unshare
from tests.simdriver import Options, SimulatedDriver, make

T = TypeVar("T")
InNamespace = Callable[[Callable[[], T]], T]


@pytest.fixture(scope="session")
def sim(tmp_path_factory: pytest.TempPathFactory) -> SimulatedDriver:
    """Two GPUs, Debian layout."""
    return make(tmp_path_factory.mktemp("sim"))


@pytest.fixture
def host(request: pytest.FixtureRequest, place: Path) -> Iterator[SimulatedDriver]:
    """A simulated host of one test, where containers can reach its files.  The module's ``HOST`` says what it has."""
    directory = Path(tempfile.mkdtemp(dir=place))
    directory.chmod(0o755)
    yield make(directory, getattr(request.module, "HOST", Options()))
    shutil.rmtree(directory)


@pytest.fixture
def make_sim(tmp_path: Path) -> Callable[[Options], SimulatedDriver]:
    def build(options: Options) -> SimulatedDriver:
        return make(tmp_path / "host", options)

    return build


@pytest.fixture
def in_mount_namespace() -> InNamespace[T]:
    """Runs a function in a child with its own mount namespace; its result (or its exception) comes back."""
    if os.geteuid() != 0:
        pytest.skip("a mount namespace of its own needs root")

    def run(function: Callable[[], T]) -> T:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(read)
                unshare(CLONE_NEWNS)
                mount("none", "/", "none", MS_REC | MS_PRIVATE)
                answer: tuple[bool, object] = (True, function())
            except BaseException as e:
                # Our errors take several arguments, which pickle does not know; their text is what tests look at.
                told = GpurunError(str(e)) if isinstance(e, GpurunError) else e
                answer = (False, (told, traceback.format_exc()))
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(answer, pipe)
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            good, value = pickle.load(pipe)
        os.waitpid(pid, 0)
        if not good:
            error, text = value
            error.add_note(text)
            raise error
        return value  # type: ignore[no-any-return]

    return run


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """An image with hardly anything in it."""
    root = tmp_path / "rootfs"
    for directory in ("dev", "proc", "etc", "usr/bin"):
        (root / directory).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "usr/lib").mkdir()
    return root
