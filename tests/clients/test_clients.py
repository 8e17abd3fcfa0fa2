"""containerd, Docker and Podman with the runtime under test: what their users see."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.bed import IMAGE, ClientBed, ClientBedUnavailable
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
        directory = Path(name)
        sysroot = None
        if os.path.basename(path).startswith("gpurun"):
            from tests.simdriver import Options, make

            sysroot = make(directory / "driver", Options(gpus=2)).path
        try:
            bed = ClientBed(path, directory, sysroot)
        except ClientBedUnavailable as e:
            pytest.skip(str(e))
        yield bed
        bed.close()


@pytest.fixture(params=["ctr", "docker", "podman"])
def client(request: pytest.FixtureRequest, clients: ClientBed) -> Client:
    """``client(*argv, env=…, user=…)`` runs a container of the busybox image with the client's own ``run``."""

    def run(*argv: str, env: dict[str, str] | None = None, options: tuple[str, ...] = ()) -> Result:
        given = [x for k, v in (env or {}).items() for x in ("--env", f"{k}={v}")]
        if request.param == "ctr":
            ctr = ["ctr", "run", "--rm", "--runc-binary", str(clients.wrapper), *given, *options]
            return clients.run(*ctr, f"docker.io/{IMAGE}", f"t{secrets.token_hex(4)}", *argv)
        # The seccomp profiles of Docker and Podman are for a later runtime.
        unconfined = ["--security-opt", "seccomp=unconfined"]
        if request.param == "docker":
            return clients.run("docker", "run", "--rm", "--runtime", "test", *unconfined, *given, *options, IMAGE, *argv)
        podman = ["podman", "--runtime", str(clients.wrapper), "run", "--rm", "--net=none", *unconfined, *given, *options]
        return clients.run(*podman, IMAGE, *argv)

    run.__name__ = request.param
    return run


def test_output(client: Client) -> None:
    assert client("echo", "hello") == (0, "hello\n", "")


@pytest.mark.parametrize("code", [0, 3, 42])
def test_exit_code(client: Client, code: int) -> None:
    assert client("sh", "-c", f"exit {code}").rc == code


def test_command_not_found(client: Client) -> None:
    result = client("nosuchcommand")
    assert "not found" in result.text
    assert result.rc == (127 if client.__name__ != "ctr" else 1)


def test_command_that_may_not_run(client: Client) -> None:
    result = client("/etc/passwd")
    assert "permission denied" in result.text.lower()
    assert result.rc == (126 if client.__name__ != "ctr" else 1)


def test_identity(client: Client) -> None:
    result = client("sh", "-c", "echo $$; id -u; grep -c . /proc/self/mountinfo")
    assert result.out.split()[:2] == ["1", "0"]


def test_environment(client: Client) -> None:
    assert client("sh", "-c", "echo $GREETING", env={"GREETING": "good day"}).out == "good day\n"


def test_no_gpu_without_a_request(client: Client) -> None:
    result = client("sh", "-c", "ls /dev | grep -c nvidia")
    assert result.out == "0\n"


@pytest.mark.gpurun_only
def test_gpu(client: Client) -> None:
    result = client("sh", "-c", "ls /dev | grep nvidia; for i in 0 1 ctl; do : <>/dev/nvidia$i; done", env=GPU)
    assert {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"} <= set(result.out.split())
    assert "Operation not permitted" not in result.err, "the container's own device program must allow them"
    assert result.err.count("No such device or address") >= 1


@pytest.mark.gpurun_only
def test_one_gpu(client: Client, clients: ClientBed) -> None:
    """The index is the order on the PCI bus; the number of the node is the driver's own."""
    assert clients.sysroot is not None
    second = sorted((clients.sysroot / "proc/driver/nvidia/gpus").iterdir())[1]
    minor = next(x.split()[-1] for x in (second / "information").read_text().splitlines() if x.startswith("Device Minor"))
    result = client("sh", "-c", "ls /dev | grep 'nvidia[0-9]'", env=GPU | {"NVIDIA_VISIBLE_DEVICES": "1"})
    assert result.out == f"nvidia{minor}\n"


@pytest.mark.gpurun_only
def test_driver_libraries(client: Client) -> None:
    result = client("sh", "-c", "cat /proc/mounts | grep -o 'libcuda[^ ]*' | head -n 1", env=GPU)
    assert result.out.startswith("libcuda.so.")


@pytest.mark.gpurun_only
def test_unknown_gpu(client: Client) -> None:
    result = client("true", env=GPU | {"NVIDIA_VISIBLE_DEVICES": "7"})
    assert result.rc != 0
    assert "7: unknown device" in result.text


def test_docker_detached(clients: ClientBed) -> None:
    options = ["--runtime", "test", "--security-opt", "seccomp=unconfined", "--network", "none"]
    started = clients.run(
        "docker", "run", "-d", *options, IMAGE, "sh", "-c", "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done"
    )
    assert started.rc == 0, started.text
    container = started.out.strip()
    try:
        state = clients.run("docker", "inspect", "-f", "{{.State.Status}} {{.HostConfig.Runtime}}", container)
        assert state.out.split() == ["running", "test"]
        assert clients.run("docker", "stop", container).rc == 0
        assert clients.run("docker", "inspect", "-f", "{{.State.ExitCode}}", container).out.strip() == "5"
    finally:
        clients.run("docker", "rm", "-f", container)


def test_docker_network(clients: ClientBed) -> None:
    """dockerd wires the network between create and start, through /proc/<pid>/ns/net."""
    result = clients.run(
        "docker", "run", "--rm", "--runtime", "test", "--security-opt", "seccomp=unconfined", IMAGE, "ip", "-o", "-4", "addr"
    )
    assert result.rc == 0, result.text
    assert "eth0" in result.out


def test_podman_sees_the_end(clients: ClientBed) -> None:
    """conmon must learn the exit code: it is the parent of the container's first process."""
    podman = ["podman", "--runtime", str(clients.wrapper)]
    run = ["run", "-d", "--net=none", "--security-opt", "seccomp=unconfined", IMAGE, "sh", "-c", "sleep 0.3; exit 9"]
    container = clients.run(*podman, *run)
    assert container.rc == 0, container.text
    name = container.out.strip()
    assert clients.run(*podman, "wait", name).out.strip() == "9"
    assert clients.run(*podman, "rm", name).rc == 0


def test_nothing_is_left(clients: ClientBed) -> None:
    assert clients.run("docker", "ps", "-aq").out == ""
    assert clients.run("podman", "ps", "-aq").out == ""
    assert clients.run("ctr", "tasks", "ls", "-q").out == ""
    cgroups = clients.run("sh", "-c", "find /sys/fs/cgroup -mindepth 2 -type d | grep -v buildkit").out.split()
    assert not [c for c in cgroups if "libpod-" in c or "/docker/" in c], cgroups
    assert (
        clients.run("sh", "-c", "ls /run/containerd/runc/* /run/docker/runtime-runc/* 2>/dev/null | grep -v :").out.split()
        == []
    )
