"""A real GPU: a program that computes is saved with its container, and goes on computing."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gpurun.gpu.nvidia.cuda_checkpoint import missing
from gpurun.gpu.nvidia.host.driver import Driver
from gpurun.gpu.nvidia.host.gpus import Gpu

from .place import PROGRAM, Place
from .test_gpu import DRIVER, driver, gpus, place  # noqa: F401

pytestmark = [
    pytest.mark.native,
    pytest.mark.gpurun_only,
    pytest.mark.skipif(not DRIVER.exists(), reason=f"no NVIDIA driver here ({DRIVER} is not there)"),
    pytest.mark.skipif(not shutil.which("criu"), reason="criu is not on PATH"),
]


def test_a_program_that_computes_goes_on(place: Place, driver: Driver, gpus: tuple[Gpu, ...], tmp_path: Path) -> None:  # noqa: F811
    lacks = missing(driver.version)
    if lacks or not place.filters:
        pytest.skip(f"this host lacks {', '.join(lacks)}" if lacks else f"containers are made {place.way}")
    name = f"gpu-{secrets.token_hex(6)}"
    sums = place.rootfs / "root/sums"
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    config = place.config([PROGRAM, "--loop", "/root/sums"], [f"NVIDIA_VISIBLE_DEVICES={gpus[0].uuid}"])
    (bundle / "config.json").write_text(json.dumps(config))

    def call(*words: str) -> None:
        command = [place.runtime, "--root", str(tmp_path / "state"), *words]
        with open(tmp_path / "said", "w+") as said:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=300, check=False)
            said.seek(0)
            assert done.returncode == 0, f"{words}: {said.read()}"

    def wait(more: int) -> None:
        before, end = len(sums.read_text().splitlines()) if sums.exists() else 0, time.monotonic() + 60
        while not sums.exists() or len(sums.read_text().splitlines()) < before + more:
            assert time.monotonic() < end, "it does not go on"
            time.sleep(0.1)

    images = ("--image-path", str(tmp_path / "images"))
    try:
        call("run", "--detach", "--bundle", str(bundle), name)
        wait(3)
        call("checkpoint", *images, name)
        call("restore", "--detach", "--bundle", str(bundle), *images, name)
        wait(3)
        assert set(sums.read_text().splitlines()) == {"right"}
    finally:
        call("delete", "--force", name)
        sums.unlink(missing_ok=True)
