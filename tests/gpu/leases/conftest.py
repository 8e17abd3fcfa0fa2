"""Simulated hosts for tests of leases: with a major of their own, because all containers of this machine are looked at."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.gpu.leases.asked import Start, starter
from tests.gpu.leases.box import GPUS, MakeBox, box_maker
from tests.native.runtime import Runtime
from tests.needs_nodes import require_nodes
from tests.nvml import compile_stub
from tests.simdriver import MULTIARCH, VERSION, Options, SimulatedDriver, make

NO_PID = 1 << 22  # pid_max is never more
MakeHost = Callable[..., SimulatedDriver]
#: Those of one worker of pytest-xdist are no other's: a container with such nodes counts wherever it was made.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_majors = itertools.cycle(range(1024 + _WORKER % 16 * 190, 1024 + _WORKER % 16 * 190 + 190))


@pytest.fixture
def make_host(place: Path) -> Iterator[MakeHost]:
    """``make_host(gpus=8, nvml="well")``: NVML is a stub of that mode, or answers nothing.

    On its first GPU computes the process *pid*.
    """
    made: list[Path] = []

    def build(gpus: int = 8, nvml: str = "", major: int = 0, pid: int = NO_PID, **options: object) -> SimulatedDriver:
        directory = Path(tempfile.mkdtemp(dir=place))
        directory.chmod(0o755)
        made.append(directory)
        host = make(directory, Options(gpus=gpus, major=major or next(_majors), **options))  # type: ignore[arg-type]
        require_nodes(host.real_nodes)
        if nvml:
            library = directory / f"usr/lib/{MULTIARCH[os.uname().machine]}/nvidia/current/libnvidia-ml.so.{VERSION}"
            library.unlink()
            compile_stub(library, gpus=gpus, mode=nvml, mig=bool(host.options.mig), pid=pid)
        return host

    yield build
    for directory in made:
        shutil.rmtree(directory)


@pytest.fixture
def host(make_host: MakeHost) -> SimulatedDriver:
    """One with four GPUs."""
    return make_host(GPUS)


@pytest.fixture
def start(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> Start:
    """``start("free:2", NAME="value")``: a container on *host* that runs and has said what it got."""
    return starter(runtime, bundle, host)


@pytest.fixture
def box(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> MakeBox:
    """``box("free:2")``: a container on *host*, and what can be asked of it."""
    return box_maker(runtime, bundle, host)
