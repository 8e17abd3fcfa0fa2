"""``--device nvidia.com/gpu=0`` of real clients, with the file of ``gpurun cdi generate``: under gpurun, and under runc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.bed import IMAGE, ClientBed, ClientBedUnavailable, GuestBed, make_bed, program, version
from tests.conftest import runtime_path
from tests.native.runtime import Result
from tests.simdriver import MULTIARCH, Options, bus_id, make

pytestmark = [pytest.mark.native, pytest.mark.clients, pytest.mark.gpurun_only]

LIB = f"/usr/lib/{MULTIARCH[os.uname().machine]}/nvidia/current"
SCRIPT = f"""
echo nodes $(ls /dev | grep nvidia)
echo gpus $(ls /proc/driver/nvidia/gpus)
grep Modify /proc/driver/nvidia/params
readlink {LIB}/libcuda.so
head -c 20 /etc/ld.so.cache; echo
env | grep VISIBLE
for n in /dev/nvidia1 /dev/nvidiactl; do (: <>$n) 2>&1; done
ls /dev/dri
"""
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def bed() -> Iterator[ClientBed]:
    path = runtime_path()
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is missing: run `make build` first, or set RUNTIME")
    with tempfile.TemporaryDirectory(prefix="gpurun-cdi.", dir="/var/tmp") as name:
        directory = Path(name)
        host = make(directory / "driver", Options(gpus=2))
        directory.chmod(0o755)
        try:
            made = make_bed({"test": path}, host.path)
        except ClientBedUnavailable as e:
            pytest.skip(str(e))
        spec = directory / "nvidia.yaml"
        command = [path, "cdi", "generate", "--output", str(spec), *_for_old_podman(made)]
        subprocess.run(command, env=os.environ | host.env, check=True)
        # /run is the bed's own, or that of the guest, which is thrown away.
        copied = made.run("sh", "-c", f"mkdir -p /run/cdi && cp {spec} /run/cdi/")
        assert copied.rc == 0, copied.text
        if isinstance(made, GuestBed):
            _let_docker_take_cdi()
        yield made
        made.close()
        shutil.rmtree(made.directory)


def _let_docker_take_cdi() -> None:
    """The guest's daemon is not told so from the start."""
    config = Path("/etc/docker/daemon.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"features": {"cdi": True}}))
    subprocess.run(["systemctl", "restart", "docker"], check=True, timeout=300)


def _for_old_podman(bed: ClientBed) -> list[str]:
    """Podman 4 knows CDI 0.5 and leaves out a newer file: then no groups for the nodes in /dev/dri."""
    old = version(bed, "podman", "--version") < (5,)
    return ["--feature-flag", "no-additional-gids-for-device-nodes"] if old else []


def _podman_run(bed: ClientBed, runtime: str) -> list[str]:
    """``podman run`` with this runtime; runc itself, not adapted to the host, gets no limit that needs a controller."""
    if runtime == "test":
        return ["--runtime", bed.runtimes["test"].binary, "run"]
    return ["--runtime", program(runtime), "run", "--pids-limit=0"]


@pytest.fixture(params=["docker", "podman"])
def run(request: pytest.FixtureRequest, bed: ClientBed) -> Run:
    """``run(runtime, devices, script)``: a container of the client with these CDI devices."""
    client = request.param
    if client == "docker":
        version = bed.run("docker", "version", "--format", "{{.Server.Version}}").out
        if int(version.partition(".")[0] or 0) < 25:
            pytest.skip(f"Docker 25 and newer know CDI devices, this is {version.strip()}")

    def call(runtime: str, devices: tuple[str, ...], script: str = SCRIPT) -> Result:
        options = ["--rm", "--net=none", "--security-opt", "seccomp=unconfined"]
        options += [word for device in devices for word in ("--device", device)]
        if client == "docker":
            name = bed.runtimes["test"].docker if runtime == "test" else runtime
            return bed.run("docker", "run", "--runtime", name, *options, IMAGE, "sh", "-c", script)
        return bed.run("podman", *_podman_run(bed, runtime), *options, IMAGE, "sh", "-c", script)

    return call


@pytest.mark.parametrize("runtime", ["test", "runc"])
def test_one_gpu(run: Run, runtime: str) -> None:
    """The same container from both: gpurun does what runc has our hooks do."""
    result = run(runtime, ("nvidia.com/gpu=0",))
    assert result.out, result.text
    lines = result.out.splitlines()
    assert lines[0] == "nodes nvidia-modeset nvidia-uvm nvidia-uvm-tools nvidia1 nvidiactl", result.text
    assert lines[1:6] == [
        f"gpus {bus_id(0)}",
        "ModifyDeviceFiles: 0",
        "libcuda.so.1",
        "glibc-ld.so.cache1.1",
        "NVIDIA_VISIBLE_DEVICES=void",
    ]
    assert result.out.count("No such device or address") == 2, "the devices may be opened"
    assert lines[-3:] == ["by-path", "card0", "renderD128"]


@pytest.mark.parametrize("runtime", ["test", "runc"])
def test_all_gpus_and_a_name_that_is_not_there(run: Run, runtime: str) -> None:
    result = run(runtime, ("nvidia.com/gpu=all",), "ls /proc/driver/nvidia/gpus; ls /dev/dri/by-path | wc -l")
    assert result.out.split() == [bus_id(0), bus_id(1), "4"], result.text
    result = run(runtime, ("nvidia.com/gpu=9",), "true")
    assert result.rc and "nvidia.com/gpu=9" in result.text


@pytest.mark.parametrize("runtime", ["test", "runc"])
def test_gpus_of_podman(bed: ClientBed, runtime: str) -> None:
    """Podman's ``--gpus`` is for Docker's callers: CDI devices from 5 on, nothing at all before."""
    options = ("--rm", "--net=none", "--security-opt", "seccomp=unconfined", "--gpus", "all")
    script = "ls /proc/driver/nvidia/gpus 2>/dev/null || true"
    result = bed.run("podman", *_podman_run(bed, runtime), *options, IMAGE, "sh", "-c", script)
    given = [] if _for_old_podman(bed) else [bus_id(0), bus_id(1)]
    assert (result.rc, result.out.split()) == (0, given), result.text
