"""Docker with a runtime that is called nvidia-container-runtime, and its own ``--gpus``, which looks for the hook's name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.bed import IMAGE, ClientBed, ClientBedUnavailable
from tests.simdriver import SimulatedDriver, bus_id, minor

pytestmark = [pytest.mark.clients, pytest.mark.native]


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory, names: Path, host: SimulatedDriver) -> Iterator[ClientBed]:
    """The runtime ``test`` is the link nvidia-container-runtime; all the names are on the daemon's PATH."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{names}:{os.environ['PATH']}")
        patch.setenv("GPURUN_SYSROOT", str(host.path))  # the hook has the daemon's environment
        try:
            made = ClientBed(
                {"test": str(names / "nvidia-container-runtime"), "other": shutil.which("runc") or "runc"},
                tmp_path_factory.mktemp("docker"),
                host.path,
            )
        except ClientBedUnavailable as e:
            pytest.skip(str(e))
    yield made
    made.close()


LOOK = "ls /dev | grep nvidia; ls /proc/driver/nvidia/gpus; find / -xdev -name libcuda.so.1; mount | grep -c libcuda.so"


@pytest.mark.parametrize(
    "how",
    [
        ("--runtime", "test", "--gpus", "device=1"),
        ("--runtime", "test", "-e", "NVIDIA_VISIBLE_DEVICES=1"),
        ("--runtime", "test", "--gpus", "device=1", "-e", "NVIDIA_VISIBLE_DEVICES=1"),
    ],
)
def test_one_gpu_and_nothing_twice(docker: ClientBed, how: tuple[str, ...]) -> None:
    done = docker.run("docker", "run", "--rm", *how, IMAGE, "sh", "-c", LOOK)
    words = done.text.split()
    assert done.rc == 0, done.text
    assert {"nvidiactl", f"nvidia{minor(1, 2)}", bus_id(1)} <= set(words)
    assert f"nvidia{minor(0, 2)}" not in words and bus_id(0) not in words
    assert words[-1] == "1", "libcuda is mounted once"
    assert any(word.endswith("/libcuda.so.1") for word in words)


def test_no_gpu_without_a_request(docker: ClientBed) -> None:
    done = docker.run("docker", "run", "--rm", "--runtime", "test", IMAGE, "ls", "/dev")
    assert done.rc == 0 and "nvidia" not in done.text


def test_an_unknown_gpu(docker: ClientBed) -> None:
    done = docker.run("docker", "run", "--rm", "--runtime", "test", "--gpus", "device=7", IMAGE, "true")
    assert done.rc == 125 and "7: unknown device" in done.text


@pytest.mark.parametrize("runtime", ["test", "other"])
def test_ctr_gpus(docker: ClientBed, runtime: str) -> None:
    """``ctr run --gpus`` adds a hook that calls the nvidia-container-cli on PATH."""
    if runtime == "other" and not shutil.which("runc"):
        pytest.skip("runc is not installed")
    options = ("--rm", "--gpus", "1", "--runc-binary", docker.runtimes[runtime].binary)
    done = docker.run("ctr", "run", *options, f"docker.io/{IMAGE}", f"gpus-{runtime}", "sh", "-c", LOOK)
    words = done.text.split()
    assert done.rc == 0, done.text
    assert {"nvidiactl", f"nvidia{minor(1, 2)}", bus_id(1)} <= set(words)
    assert f"nvidia{minor(0, 2)}" not in words and bus_id(0) not in words
