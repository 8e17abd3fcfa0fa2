"""Limits, proved by what they do to a container; with both cgroup drivers."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, TIMEOUT, Runtime
from tests.native.stopped_shim import StoppedShim
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver
from tests.systemd.busy import held_to_a_fifth
from tests.systemd.conftest import DEVICES, SLICE, Driver

pytestmark = pytest.mark.native

SMALL = {"memory": {"limit": 32 << 20, "swap": 32 << 20}}
BUSY = "echo up; while :; do :; done"


def limited(bundle: MakeBundle, **resources: Any) -> Bundle:
    made = bundle()
    made.linux["resources"] = {"devices": DEVICES, **resources}
    return made


def counters(path: Path) -> dict[str, int]:
    return {k: int(v) for k, v in (line.split() for line in path.read_text().splitlines())}


def ended(command: subprocess.Popen[bytes], files: Path) -> str | None:
    """What *command* has written on stderr, if it is not there any more."""
    return None if command.poll() is None else (files / "err").read_text()


def wait_until_gone(path: Path) -> None:
    wait_until(lambda: not path.exists(), TIMEOUT)


@pytest.mark.short
@pytest.mark.needs("memory")
def test_memory(driver: Driver, bundle: MakeBundle) -> None:
    """What needs more than the limit is killed; the rest of the container goes on."""
    resources = {"memory": {"limit": 64 << 20, "swap": 64 << 20}}
    script = "dd if=/dev/zero of=/dev/null bs={} count=1 2>/dev/null; echo dd $?; sleep 1000"
    fits = driver.start(limited(bundle, **resources).sh(script.format("16M")))
    assert "dd 0" in fits.wait_for("dd ")
    container = driver.start(limited(bundle, **resources).sh(script.format("200M")))
    assert "dd 137" in container.wait_for("dd ")
    path = driver.cgroup(container)
    assert counters(path / "memory.events")["oom_kill"] == 1
    assert (path / "memory.max").read_text() == f"{64 << 20}\n" and (path / "memory.swap.max").read_text() == "0\n"


@pytest.mark.gpurun_only
@pytest.mark.needs("memory")
@pytest.mark.parametrize("gpu", [False, True])
def test_what_gpurun_itself_takes(driver: Driver, bundle: MakeBundle, host: SimulatedDriver, gpu: bool) -> None:
    """It is an interpreter, and what it needs is not the container's: a container starts with 8 MiB, runc's with 12."""
    made = limited(bundle, memory={"limit": 8 << 20, "swap": 8 << 20})
    if gpu:
        made.process["env"] += ["NVIDIA_VISIBLE_DEVICES=0"]
    result = driver.run(made.sh("ls /dev | grep -c 'nvidia[0-9]'; echo up"), env=ENVIRONMENT | host.env)
    assert result.rc == 0 and result.out.split() == ["1" if gpu else "0", "up"], result


@pytest.mark.short
@pytest.mark.gpurun_only
@pytest.mark.needs("memory")
def test_who_died_of_it_is_told(driver: Driver, bundle: MakeBundle) -> None:
    made = limited(bundle, memory={"limit": 64 << 20, "swap": 64 << 20}).args(
        "dd", "if=/dev/zero", "of=/dev/null", "bs=200M"
    )
    result = driver.run(made)
    assert result.rc == 137
    assert "out of memory: 1 process was killed; the limit is 64 MiB, the peak was 64 MiB" in result.text
    container = driver.start(made)
    container.wait()
    oom = container.state()["oom"]
    assert oom["kills"] == 1 and oom["limit"] == 64 << 20 and 60 << 20 < oom["peak"] <= 64 << 20
    assert "out of memory: 1 process was killed; the limit is 64 MiB" in container.delete().text


@pytest.mark.gpurun_only
@pytest.mark.needs("memory")
def test_each_of_many_is_told(driver: Driver, bundle: MakeBundle) -> None:
    """Nobody waits for them, and a scope is gone with its process: also when it was not the first one that was killed."""
    for script in ("exec dd if=/dev/zero of=/dev/null bs=100M", "dd if=/dev/zero of=/dev/null bs=100M"):
        died = [driver.start(limited(bundle, **SMALL).sh(script)) for _ in range(5)]
        for container in died:
            container.wait()
        for container in died:
            if driver.name == "systemd":
                wait_until_gone(Path("/sys/fs/cgroup", SLICE, f"t-{container.id}.scope"))
            oom = container.state()["oom"]
            assert oom["kills"] == 1 and oom["limit"] == 32 << 20 and 30 << 20 < oom["peak"] <= 32 << 20


@pytest.mark.gpurun_only
@pytest.mark.needs("memory")
def test_who_did_not_die_of_it_is_not_told(driver: Driver, bundle: MakeBundle) -> None:
    """The one before had the same id, as when an engine starts a container anew; others are killed while it runs."""
    too_much = ("dd", "if=/dev/zero", "of=/dev/null", "bs=100M")
    made = limited(bundle, **SMALL)
    died = driver.start(made.args(*too_much))
    died.wait()
    assert died.delete().rc == 0
    made.args("sleep", "1000").write()
    again = driver.runtime.start(made, container_id=died.id, globals_=driver.options)
    assert driver.run(limited(bundle, **SMALL).args(*too_much)).rc == 137
    assert again.kill("KILL").rc == 0
    again.wait()
    assert "oom" not in again.state()
    deleted = again.delete()
    assert deleted.rc == 0 and not deleted.text


@pytest.mark.gpurun_only
@pytest.mark.needs("memory")
def test_events_tell_of_the_last_process(driver: Driver, bundle: MakeBundle) -> None:
    """With it goes the scope, perhaps before `events` has come to read its counters."""
    made = limited(bundle, **SMALL).sh(
        "echo up; until [ -e /root/go ]; do sleep .1; done; rm /root/go; exec dd if=/dev/zero of=/dev/null bs=100M"
    )
    container = driver.start(made)
    container.wait_for("up")
    files = Path(tempfile.mkdtemp(dir=driver.runtime.directory))
    events = driver.runtime.popen("events", "--interval", "200ms", container.id, files=files)
    wait_until(lambda: '"stats"' in (files / "out").read_text(), meanwhile=lambda: ended(events, files))
    (made.rootfs / "root/go").touch()
    container.wait()
    assert events.wait(60) == 0
    kinds = [json.loads(line)["type"] for line in (files / "out").read_text().splitlines()]
    assert kinds.count("oom") == 1 and set(kinds) == {"stats", "oom"}


@pytest.mark.gpurun_only
@pytest.mark.needs("memory")
def test_what_died_as_a_whole_is_told(driver: Driver, bundle: MakeBundle) -> None:
    """With memory.oom.group systemd remembers it, also when the scope is gone."""
    made = limited(bundle, memory={"limit": 64 << 20, "swap": 64 << 20}, unified={"memory.oom.group": "1"})
    made.sh("sleep 1000 & dd if=/dev/zero of=/dev/null bs=200M; sleep 1000")
    container = driver.start(made)
    container.wait()
    wait_until(lambda: "oom" in container.state())  # systemd has yet to look
    oom = container.state()["oom"]
    assert oom["limit"] == 64 << 20 and oom["peak"] <= 64 << 20
    assert driver.run(made).rc == 137
    assert container.delete().rc == 0


@pytest.mark.short
@pytest.mark.gpurun_only
@pytest.mark.needs("memory")
def test_a_shim_that_reads_late_has_not_lost_the_kill(
    runtime: Runtime, bed: Bed, bundle: MakeBundle, tmp_path: Path
) -> None:
    """The shim is stopped since before the kernel killed: its reader comes when delete is there already."""
    made = limited(bundle, **SMALL).sh(
        "until [ -e /root/go ]; do sleep .1; done; rm /root/go; exec dd if=/dev/zero of=/dev/null bs=100M"
    )
    container = runtime.start(made)
    cgroup = bed.cgroup(container.cgroup())
    delete = [*runtime.argv, "delete", container.id]
    shim = StoppedShim(cgroup, cgroup / "cgroup.events", tmp_path / "told", delete, ENVIRONMENT, bed.enter())
    try:
        (made.rootfs / "root/go").touch()
        assert container.wait() == 137
        assert shim.is_waited_for() and cgroup.exists()
        code, said, told = shim.go_on()
    finally:
        shim.close()
    assert code == 0 and "out of memory: 1 process was killed; the limit is 32 MiB" in said
    assert told == ["oom_kill 1"]
    assert not cgroup.exists()


@pytest.mark.gpurun_only
@pytest.mark.needs("memory")
def test_nobody_sees_who_holds_the_scope(driver: Driver, bundle: MakeBundle) -> None:
    """While `run` waits in the foreground, ps shows the container's own processes alone; afterwards nothing is left."""
    made = limited(bundle, memory={"limit": 64 << 20}).sh("echo up; exec sleep 1000")
    container_id = driver.place(made)
    made.write()
    files = Path(tempfile.mkdtemp(dir=driver.runtime.directory))
    run = driver.runtime.popen("run", "--bundle", str(made.directory), container_id, files=files, globals_=driver.options)
    wait_until(lambda: "up" in (files / "out").read_text(), meanwhile=lambda: ended(run, files))
    pid = json.loads(driver.runtime("state", container_id).out)["pid"]
    assert json.loads(driver.runtime("ps", "--format", "json", container_id).out) == [pid]
    cgroup = driver.bed.cgroup(Path(f"/proc/{pid}/cgroup").read_text().strip()[3:])
    held = len((cgroup / "cgroup.procs").read_text().split())
    assert held == (2 if driver.name == "systemd" else 1)
    assert driver.runtime("kill", container_id, "KILL").rc == 0
    assert run.wait(30) == 137 and not (driver.runtime.root / container_id).exists()


@pytest.mark.short
@pytest.mark.needs("cpu")
def test_cpu_quota(driver: Driver, bundle: MakeBundle) -> None:
    """Of two busy containers the one that may have a fifth of a CPU is held back, and the other is not."""
    slow = driver.start(limited(bundle, cpu={"quota": 20_000, "period": 100_000}).sh(BUSY))
    free = driver.start(limited(bundle).sh(BUSY))
    for container in (slow, free):
        container.wait_for("up")
    held_to_a_fifth(driver.cgroup(slow) / "cpu.stat", counters)
    assert counters(driver.cgroup(free) / "cpu.stat")["nr_throttled"] == 0


@pytest.mark.short
@pytest.mark.needs("pids")
def test_pids(driver: Driver, bundle: MakeBundle) -> None:
    script = "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done 2>&1; echo end; sleep 1000"
    container = driver.start(limited(bundle, pids={"limit": 5}).sh(f"({script}); sleep 1000"))
    container.wait_for("can't fork")
    assert counters(driver.cgroup(container) / "pids.events")["max"] > 0


@pytest.mark.short
@pytest.mark.needs("cpuset")
def test_cpuset(driver: Driver, bundle: MakeBundle) -> None:
    result = driver.run(limited(bundle, cpu={"cpus": "0", "mems": "0"}).sh("grep Cpus_allowed_list /proc/self/status"))
    assert result.out.split() == ["Cpus_allowed_list:", "0"]


@pytest.mark.short
@pytest.mark.needs("io")
def test_io(driver: Driver, bundle: MakeBundle) -> None:
    """3 MiB past the page cache at 1 MiB in a second: never in less than a second, whatever the machine."""
    made = limited(bundle)
    device = made.rootfs.stat().st_dev
    whole = Path(f"/sys/dev/block/{device >> 8}:{device & 255}")
    if not whole.exists():
        pytest.skip("the rootfs is on no block device")
    disk = (whole.resolve().parent if (whole / "partition").exists() else whole.resolve()) / "dev"
    major, minor = map(int, disk.read_text().split(":"))
    throttle = [{"major": major, "minor": minor, "rate": 1 << 20}]
    made.linux["resources"]["blockIO"] = {"throttleWriteBpsDevice": throttle}
    # The first write is free; what comes after it waits for it.
    made.sh("dd if=/dev/zero of=/root/f bs=1M count=3 oflag=direct 2>/dev/null && rm /root/f && echo end; sleep 1000")
    container = driver.create(made)
    began = time.monotonic()
    assert container.start().rc == 0
    container.wait_for("end")
    assert time.monotonic() - began > 1
    limits = driver.cgroup(container) / "io.max"
    assert f"{major}:{minor} rbps=max wbps={1 << 20}" in limits.read_text()
    more = {"blockIO": {"throttleWriteBpsDevice": [{**throttle[0], "rate": 2 << 20}]}}
    assert driver.runtime("update", "--resources", "-", container.id, stdin=json.dumps(more).encode()).rc == 0
    assert f"{major}:{minor} rbps=max wbps={2 << 20}" in limits.read_text()
    if driver.name == "systemd":  # it knows nothing of this limit, and leaves it when it applies what it knows
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        unit = f"t-{container.id}.scope"
        subprocess.run(["systemctl", "set-property", "--runtime", unit, "IOWeight=200"], check=True)
        assert f"{major}:{minor} rbps=max wbps={2 << 20}" in limits.read_text()


@pytest.mark.short
def test_devices(driver: Driver, bundle: MakeBundle) -> None:
    """A denied device cannot be opened (EPERM); an allowed one can be (ENXIO: nothing is behind it)."""
    made = limited(bundle).capabilities("CAP_MKNOD")
    made.linux["resources"]["devices"] = [*DEVICES, {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}]
    result = driver.run(
        made.sh("cd /root; mknod a c 195 0; mknod b c 195 1; (: <>a) 2>&1; (: <>b) 2>&1; : >/dev/null && echo null; rm a b")
    )
    lines = [line.rpartition(": ")[2] for line in result.out.splitlines()]
    assert lines == ["No such device or address", "Operation not permitted", "null"], result


@pytest.mark.short
@pytest.mark.needs("hugetlb")
def test_huge_pages(driver: Driver, bundle: MakeBundle) -> None:
    """systemd knows nothing of this controller: it is enabled for the scope all the same."""
    made = limited(bundle, hugepageLimits=[{"pageSize": "2MB", "limit": 4 << 20}]).args("sleep", "1000")
    container = driver.start(made)
    assert (driver.cgroup(container) / "hugetlb.2MB.max").read_text() == f"{4 << 20}\n"
