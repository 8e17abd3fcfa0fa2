"""GPUs through containerd, Docker and Podman, by a simulated driver; and that each of them works at all.

What the clients do otherwise is held against runc in :mod:`tests.clients.test_operations`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.bed import IMAGE, ClientBed, ClientBedUnavailable, make_bed
from tests.conftest import runtime_path
from tests.native.runtime import Result

pytestmark = [pytest.mark.native, pytest.mark.clients]

GPU = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
Client = Callable[..., Result]


@pytest.fixture(scope="module")
def clients() -> Iterator[ClientBed]:
    path = runtime_path()
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is missing: run `make build` first, or set RUNTIME")
    with tempfile.TemporaryDirectory(prefix="gpurun-clients.", dir="/var/tmp") as name:
        sysroot = None
        if os.path.basename(path).startswith("gpurun"):
            from tests.simdriver import Options, make

            sysroot = make(Path(name) / "driver", Options(gpus=2)).path
        try:
            bed = make_bed({"tested": path}, sysroot)
        except ClientBedUnavailable as e:
            pytest.skip(str(e))
        yield bed
        bed.close()
        shutil.rmtree(bed.directory)


@pytest.fixture(params=["ctr", "docker", "podman"])
def client(request: pytest.FixtureRequest, clients: ClientBed) -> Client:
    """``client(*argv, env=…)`` runs a container of the busybox image with the client's own ``run``."""
    runtime = clients.runtimes["tested"]

    def run(*argv: str, env: dict[str, str] | None = None, devices: tuple[str, ...] = ()) -> Result:
        given = [x for k, v in (env or {}).items() for x in ("--env", f"{k}={v}")]
        given += [x for device in devices for x in ("--device", device)]
        if request.param == "ctr":
            ctr = ["ctr", "run", "--rm", "--runc-binary", runtime.binary, *given]
            return clients.run(*ctr, f"docker.io/{IMAGE}", f"t{secrets.token_hex(4)}", *argv)
        program = ["podman", "--runtime", runtime.binary, "run"]
        if request.param == "docker":
            program = ["docker", "run", "--runtime", runtime.docker]
        return clients.run(*program, "--rm", "--network", "none", *given, IMAGE, *argv)

    return run


def test_output(client: Client) -> None:
    assert client("echo", "hello") == (0, "hello\n", "")


def test_exit_code(client: Client) -> None:
    assert client("sh", "-c", "exit 42").rc == 42


def test_no_gpu_without_a_request(client: Client) -> None:
    assert client("sh", "-c", "ls /dev | grep -c nvidia || :") == (0, "0\n", "")


@pytest.mark.gpurun_only
def test_gpu(client: Client) -> None:
    result = client("sh", "-c", "ls /dev | grep nvidia; for i in 0 1 ctl; do : <>/dev/nvidia$i; done", env=GPU)
    assert {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"} <= set(result.out.split())
    assert "Operation not permitted" not in result.err, "the container's own device program must allow them"
    assert "No such device or address" in result.err


@pytest.mark.gpurun_only
def test_one_gpu(client: Client, clients: ClientBed) -> None:
    """The index is the order on the PCI bus; the number of the node is the driver's own."""
    assert clients.sysroot is not None
    second = sorted((clients.sysroot / "proc/driver/nvidia/gpus").iterdir())[1]
    minor = next(x.split()[-1] for x in (second / "information").read_text().splitlines() if x.startswith("Device Minor"))
    result = client("sh", "-c", "ls /dev | grep 'nvidia[0-9]'", env=GPU | {"NVIDIA_VISIBLE_DEVICES": "1"})
    assert result.out == f"nvidia{minor}\n"


@pytest.mark.sweep(3)
@pytest.mark.gpurun_only
@pytest.mark.parametrize("value", [None, "void"])
def test_a_node_and_no_request(client: Client, clients: ClientBed, value: str | None) -> None:
    """The engine itself has put the node there: the container sees that GPU in /proc/driver/nvidia, and no other."""
    assert clients.sysroot is not None
    second = sorted((clients.sysroot / "proc/driver/nvidia/gpus").iterdir())[1]
    minor = next(x.split()[-1] for x in (second / "information").read_text().splitlines() if x.startswith("Device Minor"))
    script = "ls /dev | grep nvidia; ls /proc/driver/nvidia/gpus; grep Modify /proc/driver/nvidia/params"
    env = {"NVIDIA_VISIBLE_DEVICES": value} if value else {}
    # ctr knows no other path for a device in the container than the host's.
    path = f"{clients.sysroot}/dev/nvidia{minor}"
    result = client("sh", "-c", script, env=env, devices=(path,))
    assert result.out.split()[-3:] == [second.name, "ModifyDeviceFiles:", "0"], result


@pytest.mark.gpurun_only
def test_driver_libraries(client: Client) -> None:
    result = client("sh", "-c", "cat /proc/mounts | grep -o 'libcuda[^ ]*' | head -n 1", env=GPU)
    assert result.out.startswith("libcuda.so.")


@pytest.mark.gpurun_only
def test_unknown_gpu(client: Client) -> None:
    result = client("true", env=GPU | {"NVIDIA_VISIBLE_DEVICES": "7"})
    assert result.rc != 0
    assert "7: unknown device" in result.text


def test_nothing_is_left(clients: ClientBed) -> None:
    assert clients.run("docker", "ps", "-aq").out == ""
    assert clients.run("podman", "ps", "-aq").out == ""
    assert clients.run("ctr", "tasks", "ls", "-q").out == ""
