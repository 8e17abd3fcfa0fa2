"""Limits of containers under rootless Podman and Docker, with a user's delegated controllers: by value and by effect.

The same is done with crun, which Podman's users have; what it says otherwise is listed here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients.bed import IMAGE
from tests.clients.operation import OPERATIONS
from tests.conftest import runtime_path
from tests.native.waiting import wait_until
from tests.systemd.users import MANAGER, NAME, RUNTIME_DIR, UID, lingering_user, run_as_user

pytestmark = [pytest.mark.native, pytest.mark.clients, pytest.mark.gpurun_only, pytest.mark.needs("guest", "systemd")]

ARCHIVE = "/opt/test/busybox.tar"
LIFE = Path(__file__).with_name("rootless_life.bash")
CRUN = "/usr/bin/crun"
ROOTLESS_DOCKER = "/usr/share/docker.io/contrib/dockerd-rootless.sh"
SOCKET = Path(RUNTIME_DIR, "docker.sock")
HOME = Path("/home", NAME)
ENVIRONMENT = {
    "HOME": str(HOME),
    "USER": NAME,
    "XDG_RUNTIME_DIR": RUNTIME_DIR,
    "DBUS_SESSION_BUS_ADDRESS": f"unix:path={RUNTIME_DIR}/bus",
    "DOCKER_HOST": f"unix://{SOCKET}",
    "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
}
PATIENCE = 120  # seconds for one thing; the guest is emulated, and the machine may do other things as well
LIFE_TIMEOUT = 900  # seconds


def limits(label: str, **values: str) -> list[str]:
    files = ("memory.max", "memory.swap.max", "memory.low", "cpu.max", "cpu.weight", "pids.max", "cpuset.cpus")
    return [f"{label}: {file} {value}" for file, value in zip(files, values.values(), strict=True)]


def said(memory: str, place: str) -> list[str]:
    """What a life says; *memory* is the limit as `stats` prints it."""
    made = {"max": str(64 << 20), "swap": "0", "low": str(32 << 20), "cpu": "50000 100000", "weight": "59"}
    made |= {"pids": "20", "cpus": "0"}
    updated = made | {"max": str(96 << 20), "cpu": "25000 100000", "pids": "33"}
    lines = [f"place: a {place} of the user's", *limits("made", **made)]
    lines += ["pressure: some full some full some full", f"stats: 1 <used> / {memory}"]
    lines += ["sh: can't fork: Resource temporarily unavailable", *limits("updated", **updated), "frozen 1", "frozen 0"]
    return [*lines, "exit code 137", "oom_kill 1", "out of memory: true 137"]


def as_crun_says(lines: list[str], systemd: bool) -> list[str]:
    """The same *lines* where crun 1.21 differs: its older formula for shares, and its scopes' swap, which it takes for the
    sum of memory and swap where the kernel's file and systemd's property mean swap alone."""
    changes = {"cpu.weight 59": "cpu.weight 20"}
    if systemd:
        changes |= {"made: memory.swap.max 0": f"made: memory.swap.max {64 << 20}"}
        changes |= {"updated: memory.swap.max 0": f"updated: memory.swap.max {96 << 20}"}
    for ours, theirs in changes.items():
        lines = [line.replace(ours, theirs) for line in lines]
    return lines


class Engines:
    """The user, with both runtimes in a place that it can read; gpurun is registered under its path or its name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.gpurun = str(directory / os.path.basename(runtime_path()))
        shutil.copy(runtime_path(), self.gpurun)

    def command(self, *argv: str, **environment: str) -> str:
        done = run_as_user(argv, ENVIRONMENT | environment, self.directory, LIFE_TIMEOUT)
        assert done.returncode == 0, (argv, done.returncode, done.stdout)
        return done.stdout

    def life(self, client: str, runtime: str, prelude: str = "") -> list[str]:
        """What a life says with this *runtime*."""
        parts = [(OPERATIONS / f"{name}.bash").read_text() for name in ("shared", client, "engines")]
        script = "\n".join(["set -eu -o pipefail", *parts, prelude, LIFE.read_text()])
        name = os.path.basename(runtime)
        values = {"C": f"t{name}{os.urandom(4).hex()}", "IMAGE": IMAGE, "PATIENCE": str(PATIENCE)}
        values |= {"BINARY": runtime, "DOCKER_RUNTIME": name, "BEDS": ""}
        return self.command("bash", "-c", script, **values).splitlines()

    def lives(self, client: str, prelude: str = "") -> tuple[list[str], list[str]]:
        """With gpurun and with crun, at the same time."""
        with ThreadPoolExecutor() as both:
            ours, theirs = both.map(lambda runtime: self.life(client, runtime, prelude), (self.gpurun, CRUN))
        return ours, theirs


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    with lingering_user(), tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        os.chown(directory, UID, UID)
        yield Engines(Path(directory))


@pytest.fixture(scope="module")
def podman(engines: Engines) -> Engines:
    engines.command("podman", "load", "-qi", ARCHIVE)
    return engines


@pytest.mark.parametrize("manager", [pytest.param("systemd", marks=pytest.mark.short), "cgroupfs"])
def test_podman(podman: Engines, manager: str) -> None:
    """What its containers have of limits, what these do, and that nothing is left."""
    prelude = f'cli() {{ podman --cgroup-manager {manager} --runtime "$BINARY" "$@"; }}'
    ours, theirs = podman.lives("podman", prelude)
    expected = said("67.11MB", "scope" if manager == "systemd" else "cgroup")
    assert ours == expected
    assert theirs == as_crun_says(expected, systemd=manager == "systemd")
    assert not [path for path in MANAGER.rglob("libpod-*") if path.is_dir()]


@pytest.fixture
def docker(engines: Engines) -> Iterator[Engines]:
    """Docker's daemon as a service of the user, as its own set-up tool makes one."""
    # udev, which the guest has not, lets everybody open it; the daemon's network is a program of the user's.
    subprocess.run(["modprobe", "tun"], check=True)
    Path("/dev/net/tun").chmod(0o666)
    config = engines.directory / "daemon.json"
    runtimes = {os.path.basename(path): {"path": path} for path in (engines.gpurun, CRUN)}
    config.write_text(json.dumps({"runtimes": runtimes}))
    daemon = [ROOTLESS_DOCKER, "--config-file", str(config), "--bridge=none", "--iptables=false"]
    unit = ["systemd-run", "--user", "--unit=rootless-docker", "--property=Delegate=yes", "--property=KillMode=mixed"]
    engines.command(*unit, f"--setenv=PATH={ENVIRONMENT['PATH']}", *daemon)

    def answers() -> bool:
        return run_as_user(["docker", "version"], ENVIRONMENT, engines.directory).returncode == 0

    def ended() -> str | None:
        state = run_as_user(["systemctl", "--user", "is-active", "rootless-docker"], ENVIRONMENT, engines.directory)
        return None if state.returncode == 0 else state.stdout

    wait_until(answers, LIFE_TIMEOUT, meanwhile=ended)
    engines.command("docker", "load", "-qi", ARCHIVE)
    yield engines
    engines.command("systemctl", "--user", "stop", "rootless-docker")


def test_docker(docker: Engines) -> None:
    """The same: its rootless daemon makes scopes of the user's manager."""
    assert docker.command("docker", "info", "-f", "{{.CgroupDriver}}").strip() == "systemd"
    ours, theirs = docker.lives("docker")
    expected = said("64MiB", "scope")
    assert ours == expected
    assert theirs == as_crun_says(expected, systemd=True)
    assert not list(MANAGER.rglob("docker-*.scope"))
