"""A real GPU that containers share: NVIDIA's MPS daemon, started and ended by gpurun, and the limit that CUDA keeps."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from gpurun.gpu.nvidia.host.gpus import Gpu

from .place import Place
from .test_gpu import DRIVER, driver, gpus, place  # noqa: F401

pytestmark = [
    pytest.mark.native,
    pytest.mark.gpurun_only,
    pytest.mark.skipif(not DRIVER.exists(), reason=f"no NVIDIA driver here ({DRIVER} is not there)"),
    pytest.mark.skipif(not shutil.which("nvidia-cuda-mps-control"), reason="nvidia-cuda-mps-control is not on PATH"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


def test_a_share_is_kept(place: Place, gpus: tuple[Gpu, ...]) -> None:  # noqa: F811
    if not place.filters:
        pytest.skip(f"containers are made {place.way}: a share takes root of the host")
    asked = (f"NVIDIA_VISIBLE_DEVICES={gpus[0].uuid}", "GPURUN_GPU_MEMORY=4GiB", "GPURUN_GPU_THREADS=50%")
    small = place.program(*asked, words=("--allocate", "1024"))
    assert small.get("sum") == "right" and small["allocated"] is True, small
    large = place.program(*asked, words=("--allocate", "6144"))
    assert large.get("sum") == "right" and large["allocated"] is False, large
    whole = place.program(asked[0], words=("--allocate", "6144"))
    assert whole["allocated"] is True, "the same without a share"
    end = time.monotonic() + 30
    directories = Path("/run/gpurun-mps")
    while list(directories.glob("*/daemon")):
        assert time.monotonic() < end, "the daemon stays after its last user"
        time.sleep(0.2)
