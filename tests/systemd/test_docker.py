"""Docker with its systemd driver and gpurun: limits that hold, a GPU rule that outlives a reload."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.security.lsm import apparmor_enabled
from tests.conftest import REPOSITORY, runtime_path
from tests.simdriver import Options, make
from tests.systemd.busy import held_to_a_fifth

pytestmark = [pytest.mark.native, pytest.mark.clients, pytest.mark.needs("guest", "systemd")]

REGISTERED = Path("/usr/local/bin/gpurun")
IMAGE = "test/busybox:1"


def docker(*args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["docker", *args], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0 or not check, done
    return done


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """The guest's daemon knows the runtime by this path."""
    directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
    directory.chmod(0o755)
    driver = make(directory, Options())
    # The daemon's runtime has the daemon's environment: what points at the simulated driver is said here.
    exports = "".join(f"export {name}={value}\n" for name, value in driver.env.items())
    REGISTERED.write_text(f'#!/bin/sh\n{exports}exec {runtime_path()} "$@"\n')
    REGISTERED.chmod(0o755)
    assert "systemd" in docker("info", "-f", "{{.CgroupDriver}}").stdout
    yield
    REGISTERED.unlink()
    shutil.rmtree(directory)


@pytest.fixture
def name() -> Iterator[str]:
    made = f"t{os.urandom(4).hex()}"
    yield made
    docker("rm", "-f", made, check=False)


def run(name: str, *options: str, script: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    options = ("run", "--name", name, "--runtime", "gpurun", "--net=none", *options)
    return docker(*options, IMAGE, "sh", "-c", script, check=check)


def inspect(name: str) -> dict[str, object]:
    return json.loads(docker("inspect", name).stdout)[0]  # type: ignore[no-any-return]


def scope(name: str) -> Path:
    return Path("/sys/fs/cgroup/system.slice", unit(name))


def unit(name: str) -> str:
    return f"docker-{inspect(name)['Id']}.scope"


def counters(path: Path) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split() for line in path.read_text().splitlines())}


def test_it_is_in_a_scope(name: str) -> None:
    run(name, "-d", "-m", "64m", "--pids-limit", "20", "--cpus", "0.5", script="sleep 1000")
    path, transient = scope(name), Path("/run/systemd/transient", unit(name))
    files = ("memory.max", "pids.max", "cpu.max")
    assert [(path / f).read_text().strip() for f in files] == [str(64 << 20), "20", "50000 100000"]
    docker("rm", "-f", name)
    assert not path.exists() and not transient.exists()


def test_out_of_memory(name: str) -> None:
    done = run(name, "-m", "32m", "--memory-swap", "32m", script="exec dd if=/dev/zero of=/dev/null bs=100M", check=False)
    assert done.returncode == 137
    state = inspect(name)["State"]
    assert isinstance(state, dict) and state["OOMKilled"] is True


def test_cpu_quota(name: str) -> None:
    """Of two busy containers the one that may have a fifth of a CPU is held back, and the other is not."""
    busy = "while :; do :; done"
    other = f"{name}-free"
    try:
        run(name, "-d", "--cpus", "0.2", script=busy)
        run(other, "-d", script=busy)
        held_to_a_fifth(scope(name) / "cpu.stat", counters)
        assert counters(scope(other) / "cpu.stat")["nr_throttled"] == 0
    finally:
        docker("rm", "-f", other, check=False)


def test_a_fork_bomb(name: str) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done"
    said = run(name, "--pids-limit", "5", script=script, check=False)
    assert "can't fork" in said.stderr, said


def test_cpuset(name: str) -> None:
    done = run(name, "--cpuset-cpus", "1", "--cpuset-mems", "0", script="grep Cpus_allowed_list /proc/self/status")
    assert done.stdout.split() == ["Cpus_allowed_list:", "1"]


class Engine(http.client.HTTPConnection):
    """A connection to the daemon's API."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/docker.sock")


@pytest.mark.parametrize("runtime", ["runc", "gpurun"])
def test_io(name: str, runtime: str) -> None:
    """3 MiB past the page cache at 1 MiB in a second: never in less than a second, whatever the machine.

    Docker's own client loses the limits of devices on the way (docker/cli#5321, in 25.0 to 26.1), so the daemon is asked.
    """
    device = Path("/var/lib/docker").stat().st_dev
    disk = os.path.basename(os.readlink(f"/sys/dev/block/{device >> 8}:{device & 255}"))
    script = "dd if=/dev/zero of=/root/f bs=1M count=3 oflag=direct; cat /sys/fs/cgroup/io.max"
    throttle = [{"Path": f"/dev/{disk}", "Rate": 1 << 20}]
    host = {"Runtime": runtime, "NetworkMode": "none", "BlkioDeviceWriteBps": throttle}
    asked = {"Image": IMAGE, "Cmd": ["sh", "-c", script], "HostConfig": host}
    engine = Engine("docker")
    engine.request("POST", f"/containers/create?name={name}", json.dumps(asked), {"Content-Type": "application/json"})
    answer = engine.getresponse()
    assert answer.status == 201, answer.read()
    began = time.monotonic()
    said = docker("start", "--attach", name).stdout
    assert time.monotonic() - began > 1
    assert said.split() == [f"{device >> 8}:{device & 255}", "rbps=max", f"wbps={1 << 20}", "riops=max", "wiops=max"]


def test_update(name: str) -> None:
    """What `docker update` sets is what the kernel has and what systemd knows, so a reload keeps it."""
    run(name, "-d", "-m", "64m", script="sleep 1000")
    docker("update", "-m", "48m", "--memory-swap", "48m", "--cpus", "0.3", "--pids-limit", "9", name)
    for command in (["true"], ["systemctl", "daemon-reload"]):
        subprocess.run(command, check=True)
        files = ("memory.max", "memory.swap.max", "cpu.max", "pids.max")
        assert [(scope(name) / file).read_text().strip() for file in files] == [str(48 << 20), "0", "30000 100000", "9"]


@pytest.mark.short
def test_a_gpu_outlives_reload_set_property_and_update(name: str) -> None:
    """Each of these makes systemd apply all that it knows of the unit again: the GPU must be part of that."""
    run(name, "-d", "-m", "64m", "-e", "NVIDIA_VISIBLE_DEVICES=0", "--cap-add", "MKNOD", script="sleep 1000")
    opened = "mknod /root/o c 195 77 2>/dev/null; for d in /dev/nvidia[0-9]* /root/o; do (: <>$d) 2>&1; done"
    expected = ["No such device or address", "Operation not permitted"]
    for command in (
        ["true"],
        ["systemctl", "daemon-reload"],
        ["systemctl", "set-property", "--runtime", unit(name), "MemoryMax=56M"],
        ["docker", "update", "-m", "48m", "--memory-swap", "48m", name],
        ["systemctl", "set-property", "--runtime", unit(name), "TasksMax=50"],
        ["systemctl", "daemon-reload"],
    ):
        subprocess.run(command, check=True, capture_output=True)
        said = docker("exec", name, "sh", "-c", opened, check=False).stdout
        assert [line.rpartition(": ")[2] for line in said.splitlines()] == expected, command
    assert (scope(name) / "memory.max").read_text().strip() == str(48 << 20)
    assert (scope(name) / "pids.max").read_text().strip() == "50"


def test_a_device_outlives_a_reload_and_an_update(name: str) -> None:
    script = "mknod /root/a c 195 0; mknod /root/b c 195 1; sleep 1000"
    run(name, "-d", "--device-cgroup-rule", "c 195:0 rw", "--cap-add", "MKNOD", script=script)
    opened = "for f in a b; do (: <>/root/$f) 2>&1; done"
    expected = ["No such device or address", "Operation not permitted"]
    for command in (["true"], ["systemctl", "daemon-reload"], ["systemctl", "daemon-reload"]):
        subprocess.run(command, check=True)
        said = docker("exec", name, "sh", "-c", opened, check=False).stdout
        assert [line.rpartition(": ")[2] for line in said.splitlines()] == expected, command


@pytest.fixture
def own_profile(tmp_path: Path) -> Iterator[None]:
    """gpurun is in the profile that the package has for it."""
    if not apparmor_enabled():
        pytest.skip("this kernel does not run AppArmor")
    text = (REPOSITORY / "debian/apparmor/gpurun").read_text()
    (tmp_path / "gpurun").write_text(text.replace("/usr/bin/gpurun", runtime_path()))
    subprocess.run(["apparmor_parser", "-rK", str(tmp_path / "gpurun")], check=True)
    yield
    subprocess.run(["apparmor_parser", "-R", str(tmp_path / "gpurun")], check=True)


LABEL = "cat /proc/self/attr/current"


@pytest.mark.short
def test_the_profile_of_dockers(name: str, own_profile: None) -> None:
    """docker-default takes signals of `unconfined`, runc and crun, and not of a profile called gpurun."""
    run(name, "-d", script=f"{LABEL}; trap 'exit 3' TERM; sleep 1000 & wait")
    assert docker("exec", name, "sh", "-c", LABEL).stdout.strip("\n\0") == "docker-default (enforce)"
    assert docker("exec", "--privileged", name, "sh", "-c", LABEL).stdout.strip("\n\0") == "docker-default (enforce)"
    docker("stop", "-t", "20", name)
    assert docker("inspect", "-f", "{{.State.ExitCode}}", name).stdout == "3\n"
    assert docker("logs", name).stdout.strip("\n\0") == "docker-default (enforce)"


def test_the_profile_of_podmans(name: str, own_profile: None) -> None:
    podman = ["podman", "--runtime", runtime_path()]
    options = ["--name", name, "--net=none", f"localhost/{IMAGE}", "sh", "-c"]
    try:
        script = f"{LABEL}; trap 'exit 3' TERM; sleep 1000 & wait"
        subprocess.run([*podman, "run", "-d", *options, script], check=True, capture_output=True)
        said = subprocess.run([*podman, "exec", name, "sh", "-c", LABEL], check=True, capture_output=True, text=True).stdout
        assert said.startswith("containers-default-") and said.strip("\n\0").endswith(" (enforce)")
        subprocess.run([*podman, "stop", "-t", "20", name], check=True, capture_output=True)
        ended = [*podman, "inspect", "-f", "{{.State.ExitCode}}", name]
        assert subprocess.run(ended, check=True, capture_output=True, text=True).stdout == "3\n"
    finally:
        subprocess.run([*podman, "rm", "-f", name], check=False, capture_output=True)
