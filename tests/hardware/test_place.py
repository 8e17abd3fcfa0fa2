"""The suite for real hardware on the simulated driver, as far as that goes: so that it has not rotted when one is there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.bed import Bed
from tests.simdriver import Options, bus_id, make, minor

from .place import Place, Unavailable, ways

WAYS = list(ways())


@pytest.fixture(params=WAYS, ids=[way[0] for way in WAYS])
def place(bed: Bed, request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each way of making a container, with a driver that is simulated: its libcuda says that there is no device."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="gpurun-gpu.") as name:
        directory = Path(name)
        directory.chmod(0o755)
        driver = make(directory / "host", Options(gpus=2))
        try:
            yield Place(directory, [], {"PATH": os.environ["PATH"]} | driver.env, [request.param])
        except Unavailable as e:
            pytest.skip(str(e))


pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def test_a_gpu_without_hardware(place: Place) -> None:
    """The program finds the driver's library and the GPU asked for and no other; the host has no new mount."""
    before = Path("/proc/self/mounts").read_text()
    assert place.program("NVIDIA_VISIBLE_DEVICES=0") == {"init": 100}
    assert "libcuda.so.1" in str(place.program()["error"]), "without a request there is no libcuda"
    look = "import os; print(*sorted(os.listdir('/dev')), *os.listdir('/proc/driver/nvidia/gpus'))"
    seen = place.run(["-c", look], "NVIDIA_VISIBLE_DEVICES=1").stdout.split()
    assert f"nvidia{minor(1, 2)}" in seen and f"nvidia{minor(0, 2)}" not in seen
    assert bus_id(1) in seen and bus_id(0) not in seen
    assert Path("/proc/self/mounts").read_text() == before
