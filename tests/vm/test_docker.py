"""Docker with its systemd driver and gpurun: limits that hold, a GPU rule that outlives a reload."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import runtime_path

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("systemd")]

REGISTERED = Path("/usr/local/bin/gpurun")
IMAGE = "test/busybox:1"


def docker(*args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["docker", *args], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0 or not check, done
    return done


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """Only in the guest: it has a daemon that knows the runtime by this path."""
    if os.uname().nodename != "gpurun-vm" or not shutil.which("docker"):
        pytest.skip("this is not the guest with its Docker: `make test-vm` runs it there")
    shutil.copy(runtime_path(), REGISTERED)
    assert "systemd" in docker("info", "-f", "{{.CgroupDriver}}").stdout
    yield
    REGISTERED.unlink()


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


def test_it_is_in_a_scope(name: str) -> None:
    run(name, "-d", "-m", "64m", "--pids-limit", "20", "--cpus", "0.5", script="sleep 1000")
    unit = f"docker-{inspect(name)['Id']}.scope"
    path = Path("/sys/fs/cgroup/system.slice") / unit
    files = ("memory.max", "pids.max", "cpu.max")
    assert [(path / f).read_text().strip() for f in files] == [str(64 << 20), "20", "50000 100000"]
    docker("rm", "-f", name)
    assert not path.exists() and not Path("/run/systemd/transient", unit).exists()


def test_out_of_memory(name: str) -> None:
    done = run(name, "-m", "32m", "--memory-swap", "32m", script="exec dd if=/dev/zero of=/dev/null bs=100M", check=False)
    assert done.returncode == 137
    state = inspect(name)["State"]
    assert isinstance(state, dict) and state["OOMKilled"] is True


def test_a_device_outlives_a_reload_and_an_update(name: str) -> None:
    script = "mknod /root/a c 195 0; mknod /root/b c 195 1; sleep 1000"
    run(name, "-d", "--device-cgroup-rule", "c 195:0 rw", "--cap-add", "MKNOD", script=script)
    opened = "for f in a b; do (: <>/root/$f) 2>&1; done"
    expected = ["No such device or address", "Operation not permitted"]
    for command in (["true"], ["systemctl", "daemon-reload"], ["systemctl", "daemon-reload"]):
        subprocess.run(command, check=True)
        said = docker("exec", name, "sh", "-c", opened, check=False).stdout
        assert [line.rpartition(": ")[2] for line in said.splitlines()] == expected, command
