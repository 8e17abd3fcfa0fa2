"""Containers of a user without root, in scopes of the user's own service manager: limits by effect, clear refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import runtime_path
from tests.native.bundle import make_rootfs
from tests.native.runtime import TIMEOUT
from tests.native.waiting import wait_until
from tests.systemd.busy import held_to_a_fifth
from tests.systemd.users import CONTROLLERS, MANAGER, NAME, RUNTIME_DIR, UID, delegate, lingering_user, run_as_user

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only, pytest.mark.needs("guest", "systemd")]

OPTIONS = "--systemd-cgroup"
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module", autouse=True)
def user() -> Iterator[None]:
    with lingering_user():
        yield


class User:
    """Calls gpurun as the user does; *environment* is what it is called with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = directory / "gpurun"
        shutil.copy(runtime_path(), self.program)
        self.environment = {"XDG_RUNTIME_DIR": RUNTIME_DIR, "PATH": "/usr/bin:/bin"}
        self.ids: list[str] = []

    def command(self, *argv: str, check: bool = True) -> str:
        """Run *argv* as the user; what it has said."""
        done = run_as_user(argv, self.environment, self.directory)
        assert not check or done.returncode == 0, (argv, done.returncode, done.stdout)
        return done.stdout

    def gpurun(self, *args: str, check: bool = True) -> str:
        return self.command(str(self.program), *args, check=check)

    def bundle(self, script: str, resources: dict[str, Any], change: Change | None = None) -> str:
        """Write config.json; a new id."""
        path = self.directory / "config.json"
        path.unlink(missing_ok=True)
        self.gpurun("spec", "--rootless")
        config = json.loads(path.read_text())
        config["process"] |= {"terminal": False, "args": ["sh", "-c", script]}
        config["linux"]["resources"] = resources
        if change:
            change(config)
        path.write_text(json.dumps(config))
        self.ids.append(f"u{len(self.ids)}")
        return self.ids[-1]

    def start(self, script: str, **resources: Any) -> Path:
        """Start a container; the directory of its cgroup, which is a scope of the user's manager."""
        made = self.bundle(script, resources)
        self.gpurun(OPTIONS, "run", "--detach", made)
        state = json.loads(self.gpurun("state", made))
        line = Path(f"/proc/{state['pid']}/cgroup").read_text().strip()
        path = MANAGER / f"user.slice/gpurun-{made}.scope"
        assert line == "0::" + str(path).removeprefix("/sys/fs/cgroup")
        return path


@pytest.fixture
def caller(place: Path, busybox: Path) -> Iterator[User]:
    place.chmod(0o755)
    directory = Path(tempfile.mkdtemp(dir=place))
    make_rootfs(directory / "rootfs", busybox)
    subprocess.run(["chown", "-R", f"{UID}:{UID}", directory], check=True)
    directory.chmod(0o755)
    made = User(directory)
    yield made
    for container_id in made.ids:
        made.gpurun("delete", "--force", container_id)
    units = made.command("systemctl", "--user", "list-units", "--all", "--no-legend", "gpurun-*")
    assert not units and not list(MANAGER.rglob("gpurun-*.scope")), "nothing is left"
    assert not list(Path(RUNTIME_DIR, "gpurun").glob("u*"))


def numbers(path: Path) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split() for line in path.read_text().splitlines())}


@pytest.mark.short
def test_limits_and_update(caller: User) -> None:
    """What update sets outlives a reload of the manager, and what the manager knows is what the kernel has."""
    path = caller.start(
        "sleep 1000", memory={"limit": 64 << 20}, pids={"limit": 20}, cpu={"quota": 50_000, "period": 100_000}
    )
    files = ("memory.max", "pids.max", "cpu.max")
    assert [(path / f).read_text().strip() for f in files] == [str(64 << 20), "20", "50000 100000"]
    assert caller.gpurun("exec", caller.ids[-1], "cat", "/proc/self/cgroup") == "0::/\n"
    caller.gpurun("update", "--memory", "32m", "--pids-limit", "7", caller.ids[-1])
    caller.command("systemctl", "--user", "daemon-reload")
    assert [(path / f).read_text().strip() for f in files] == [str(32 << 20), "7", "50000 100000"]


def test_control(caller: User) -> None:
    """A user without root asks what a container uses, and stops and resumes it, as root does."""
    path = caller.start("sleep 1000", memory={"limit": 64 << 20}, pids={"limit": 20})
    assert_controlled(caller, path)


def assert_controlled(caller: User, path: Path) -> None:
    """`events`, `stats`, `pause` and `resume` work on the last container, whose cgroup is *path*."""
    made = caller.ids[-1]
    limit = int((path / "memory.max").read_text())
    report = json.loads(caller.gpurun("events", "--stats", made))["data"]
    assert report["memory"]["usage"]["limit"] == limit and report["pids"]["current"] == 1
    assert f"/ {limit >> 20}MiB" in caller.gpurun("stats", "--once", made)
    for command, frozen, status in (("pause", 1, "paused"), ("resume", 0, "running")):
        caller.gpurun(command, made)
        assert numbers(path / "cgroup.events")["frozen"] == frozen
        assert json.loads(caller.gpurun("state", made))["status"] == status


def test_out_of_memory(caller: User) -> None:
    made = caller.bundle("exec dd if=/dev/zero of=/dev/null bs=200M", {"memory": {"limit": 32 << 20, "swap": 32 << 20}})
    assert "out of memory: 1 process was killed; the limit is 32 MiB" in caller.gpurun(OPTIONS, "run", made, check=False)


def test_cpu_quota(caller: User) -> None:
    busy = "while :; do :; done"
    paths = [caller.start(busy, cpu={"quota": 20_000, "period": 100_000}), caller.start(busy)]
    held_to_a_fifth(paths[0] / "cpu.stat", numbers)
    assert numbers(paths[1] / "cpu.stat")["nr_throttled"] == 0


def test_a_fork_bomb(caller: User) -> None:
    made = caller.bundle("for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done", {"pids": {"limit": 5}})
    assert "can't fork" in caller.gpurun(OPTIONS, "run", made, check=False)


def test_cpuset(caller: User) -> None:
    made = caller.bundle("grep Cpus_allowed_list /proc/self/status", {"cpu": {"cpus": "1"}})
    assert caller.gpurun(OPTIONS, "run", made).split() == ["Cpus_allowed_list:", "1"]


def throttled(path: Path) -> dict[str, Any]:
    """A limit of 1 MiB in a second for what is written to the disk that *path* is on."""
    device = path.stat().st_dev
    return {"throttleWriteBpsDevice": [{"major": device >> 8, "minor": device & 255, "rate": 1 << 20}]}


def test_io(caller: User) -> None:
    """3 MiB past the page cache at 1 MiB in a second: never in less than a second, whatever the machine."""

    def writable(config: dict[str, Any]) -> None:
        config["root"]["readonly"] = False

    script = "dd if=/dev/zero of=/root/f bs=1M count=3 oflag=direct && rm /root/f && echo end"
    made = caller.bundle(script, {"blockIO": throttled(caller.directory)}, writable)
    began = time.monotonic()
    assert "end" in caller.gpurun(OPTIONS, "run", made)
    assert time.monotonic() - began > 1
    path = caller.start("sleep 1000", blockIO=throttled(caller.directory))
    assert f"wbps={1 << 20}" in (path / "io.max").read_text()


def test_over_the_bus(caller: User) -> None:
    """Where only DBUS_SESSION_BUS_ADDRESS says where the manager is: over the daemon that it is connected to."""
    private = Path(RUNTIME_DIR, "systemd/private")
    hidden = private.with_name("hidden")
    private.rename(hidden)
    try:
        caller.environment["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={RUNTIME_DIR}/bus"
        path = caller.start("sleep 1000", pids={"limit": 9})
        assert (path / "pids.max").read_text() == "9\n"
        assert "manager=user bus" in Path(RUNTIME_DIR, "gpurun", caller.ids[-1], "state").read_text()
        caller.gpurun("update", "--pids-limit", "8", caller.ids[-1])
        caller.gpurun("delete", "--force", caller.ids[-1])
        assert not path.exists()
    finally:
        hidden.rename(private)


def test_from_a_login_session(caller: User) -> None:
    """A session is beside the user's manager: gpurun gets out of it, and the container outlives it."""
    made = caller.bundle("sleep 1000", {"pids": {"limit": 9}})
    run = f"{caller.program} {OPTIONS} run -d {made} </dev/null >said 2>&1"
    script = f"cd {caller.directory} && {run} && {caller.program} exec {made} cat /proc/self/cgroup && cat /proc/self/cgroup"
    done = subprocess.run(["su", "-l", NAME, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    inside, outside = done.stdout.splitlines()
    assert inside == "0::/" and outside.startswith(f"0::/user.slice/user-{UID}.slice/session-"), done
    assert (MANAGER / f"user.slice/gpurun-{made}.scope/pids.max").read_text() == "9\n"
    wait_until(lambda: not Path("/sys/fs/cgroup", outside[4:]).exists(), TIMEOUT)  # the session has ended
    assert json.loads(caller.gpurun("state", made))["status"] == "running"


def test_root_of_a_user_namespace(caller: User) -> None:
    """As under rootless Podman: root there, and the manager is the user's all the same."""

    def inside(config: dict[str, Any]) -> None:
        linux = config["linux"]
        linux["namespaces"] = [one for one in linux["namespaces"] if one["type"] != "user"]
        del linux["uidMappings"], linux["gidMappings"]

    made = caller.bundle("sleep 1000", {"pids": {"limit": 9}}, inside)
    script = f"{caller.program} {OPTIONS} run -d {made} && {caller.program} exec {made} cat /proc/self/cgroup"
    assert "0::/\n" in caller.command("unshare", "-Ur", "sh", "-ec", script)
    assert (MANAGER / f"user.slice/gpurun-{made}.scope/pids.max").read_text() == "9\n"


def test_no_manager(caller: User) -> None:
    made = caller.bundle("true", {})
    caller.environment["XDG_RUNTIME_DIR"] = str(caller.directory)
    text = caller.gpurun(OPTIONS, "run", made, check=False)
    assert "cannot reach your systemd user manager" in text and "loginctl enable-linger" in text
    caller.environment["XDG_RUNTIME_DIR"] = RUNTIME_DIR


def test_what_is_not_delegated_is_refused(caller: User) -> None:
    delegate("memory pids")
    throttle = throttled(caller.directory)
    try:
        for resources, asked, controller in (
            ({"cpu": {"cpus": "0"}}, "cpu.cpus", "cpuset"),
            ({"blockIO": throttle}, "blockIO.throttleWriteBpsDevice[0]", "io"),
        ):
            text = caller.gpurun(OPTIONS, "run", caller.bundle("true", resources), check=False).replace("\\", "")
            assert f'linux.resources.{asked}: the cgroup v2 controller "{controller}" is not available' in text
            assert "not delegated to your service manager" in text and "systemctl edit user@.service" in text
    finally:
        delegate(CONTROLLERS)
