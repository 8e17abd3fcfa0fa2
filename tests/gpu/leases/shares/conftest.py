"""Containers with a share of one of two GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import MakeBundle
from tests.gpu.leases.conftest import MakeHost
from tests.gpu.leases.shares.sharing import Start, starter, two_gpus
from tests.native.runtime import Runtime
from tests.simdriver import SimulatedDriver


@pytest.fixture
def host(make_host: MakeHost, runtime: Runtime) -> Iterator[SimulatedDriver]:
    """One with two GPUs that MPS can share; nothing of a daemon is left of it in the end."""
    yield from two_gpus(make_host, runtime)


@pytest.fixture
def start(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> Start:
    """``start("0", memory="8GiB")``: a container on *host* that runs and has said what it got."""
    return starter(runtime, bundle, host)
