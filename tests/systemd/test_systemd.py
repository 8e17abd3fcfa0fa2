"""Scopes of a real systemd: made, known to it, kept through a reload, updated, removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver
from tests.systemd.conftest import SLICE, Driver

pytestmark = [pytest.mark.native, pytest.mark.needs("systemd")]

NO_DRIVER, DENIED = "No such device or address", "Operation not permitted"
#: Opens the GPU and another device for each file ``go`` that appears.
OPENER = """
cd /root; mknod other c 195 77; gpu=$(echo /dev/nvidia[0-9]*); echo up
while [ ! -e stop ]; do
    if [ -e go ]; then for d in $gpu other; do (: <>$d) 2>&1; done; rm go; fi
    sleep 0.1
done
rm other stop
"""


@pytest.fixture
def scopes(runtime: Runtime, bed: Bed) -> Driver:
    return Driver("systemd", runtime, bed)


def show(container: Container, *properties: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for line in systemctl("show", f"t-{container.id}.scope", "-p", ",".join(properties)).splitlines():
        name, _, value = line.partition("=")
        pairs[name] = f"{pairs[name]} {value}" if name in pairs else value
    return pairs


def is_loaded(container: Container) -> bool:
    return is_loaded_unit(f"t-{container.id}.scope")


def is_loaded_unit(unit: str) -> bool:
    return unit in systemctl("list-units", "--all", "--no-legend", unit)


def systemctl(*args: str) -> str:
    return subprocess.run(["systemctl", *args], check=True, capture_output=True, text=True).stdout


@pytest.mark.short
def test_a_life(scopes: Driver, bundle: MakeBundle) -> None:
    container = scopes.create(bundle().args("sleep", "1000"))
    path = scopes.cgroup(container)
    assert (path / "cgroup.procs").read_text().split() == [str(container.pid)], "the placeholder is gone"
    assert is_loaded(container)
    shown = show(container, "Slice", "Delegate", "DefaultDependencies", "ActiveState", "Description")
    assert shown == {
        "Slice": SLICE,
        "Delegate": "yes",
        "DefaultDependencies": "no",
        "ActiveState": "active",
        "Description": f"gpurun container {container.id}",
    } or not scopes.runtime.name.startswith("gpurun")
    assert container.start().rc == 0
    assert container.state()["status"] == "running"
    # Clients leave the option out here, and what is true is in the state.
    assert container.kill("KILL").rc == 0
    container.wait()
    assert container.state()["status"] == "stopped"
    assert container.delete().rc == 0
    assert not path.exists() and not is_loaded(container)


def test_the_container_sees_its_scope_as_the_root(scopes: Driver, bundle: MakeBundle) -> None:
    assert "0::/\n" in scopes.run(bundle().args("cat", "/proc/self/cgroup")).out


@pytest.mark.short
@pytest.mark.needs("memory", "cpu", "cpuset", "pids")
def test_systemd_knows_the_limits(scopes: Driver, bundle: MakeBundle) -> None:
    made = bundle().args("sleep", "1000")
    made.linux["resources"] |= {
        "memory": {"limit": 64 << 20, "reservation": 32 << 20, "swap": 96 << 20},
        "cpu": {"shares": 512, "quota": 50_500, "period": 100_000, "cpus": "0", "mems": "0"},
        "pids": {"limit": 33},
    }
    container = scopes.start(made)
    names = ("MemoryMax", "MemoryLow", "MemorySwapMax", "CPUWeight", "CPUQuotaPerSecUSec", "TasksMax", "AllowedCPUs")
    shown = show(container, *names, "AllowedMemoryNodes")
    assert shown["MemoryMax"] == str(64 << 20) and shown["MemoryLow"] == str(32 << 20)
    assert shown["MemorySwapMax"] == str(32 << 20) and shown["TasksMax"] == "33"
    assert shown["CPUQuotaPerSecUSec"] == "510ms" and shown["AllowedCPUs"] == "0" == shown["AllowedMemoryNodes"]
    path = scopes.cgroup(container)
    wanted = {
        "memory.max": str(64 << 20),
        "memory.swap.max": str(32 << 20),
        "pids.max": "33",
        "cpuset.cpus": "0",
        "cpu.weight": shown["CPUWeight"],
    }
    systemctl("daemon-reload")
    assert {file: (path / file).read_text().strip() for file in wanted} == wanted


@pytest.mark.short
@pytest.mark.gpurun_only
def test_a_gpu_outlives_reload_set_property_and_update(
    scopes: Driver, bundle: MakeBundle, place: Path, host: SimulatedDriver
) -> None:
    """The complaint that the field knows best: after `systemctl daemon-reload` a container has lost its GPUs."""
    made = bundle()
    made.process["env"] += ["NVIDIA_VISIBLE_DEVICES=0"]
    made.capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE")
    container = scopes.start(made.sh(OPENER), env=ENVIRONMENT | host.env)
    container.wait_for("up")
    assert "/dev/char/195:" in show(container, "DeviceAllow")["DeviceAllow"]
    assert show(container, "DevicePolicy") == {"DevicePolicy": "strict"}
    limits = "pids" in scopes.bed.controllers
    go = made.rootfs / "root/go"
    unit = f"t-{container.id}.scope"
    acts: list[Callable[[], object]] = [
        lambda: None,
        lambda: systemctl("daemon-reload"),
        lambda: systemctl("set-property", "--runtime", unit, "TasksMax=77"),
        lambda: scopes.runtime("update", *(("--pids-limit", "55") if limits else ("--blkio-weight", "0")), container.id),
        lambda: systemctl("set-property", "--runtime", unit, "MemoryHigh=1G"),
        lambda: systemctl("daemon-reload"),
    ]
    for done, act in enumerate(acts, 1):
        act()
        go.touch()
        wait_until(lambda: not go.exists())
        verdicts = [line.rpartition(": ")[2] for line in container.out.splitlines()[1:]]
        assert verdicts == [NO_DRIVER, DENIED] * done, (done, container.out)
    if limits:
        assert (scopes.cgroup(container) / "pids.max").read_text() == "55\n"
    (made.rootfs / "root/stop").touch()
    assert container.wait() == 0


def test_properties_by_annotation(scopes: Driver, bundle: MakeBundle) -> None:
    made = bundle().args("sleep", "1000")
    made.config["annotations"] = {
        "org.systemd.property.TimeoutStopSec": "uint64 7",
        "org.systemd.property.CollectMode": "'inactive-or-failed'",
    }
    shown = show(scopes.start(made), "TimeoutStopUSec", "CollectMode")
    assert shown == {"TimeoutStopUSec": "7s", "CollectMode": "inactive-or-failed"}


@pytest.mark.gpurun_only
def test_a_property_that_systemd_does_not_have(scopes: Driver, bundle: MakeBundle) -> None:
    made = bundle()
    made.config["annotations"] = {"org.systemd.property.NoSuchThing": "true"}
    container = scopes.create(made, check=False)
    assert container.result.rc == 1 and "cannot make the systemd unit" in container.result.text
    assert "NoSuchThing" in container.result.text and not (scopes.runtime.root / container.id).exists()


def test_a_path_of_the_other_driver(scopes: Driver, bundle: MakeBundle) -> None:
    text = scopes.runtime.refused(bundle(), globals_=("--systemd-cgroup",))
    assert 'expected cgroupsPath to be of format "slice:prefix:name" for systemd cgroups' in text


def test_all_go_with_delete(scopes: Driver, bundle: MakeBundle) -> None:
    """Cgroups that the container made, and processes that outlive its first one."""
    script = "mkdir -p /sys/fs/cgroup/a/b; sleep 1000 & echo 0 >/sys/fs/cgroup/a/b/cgroup.procs; echo up; sleep 1000"
    made = bundle().sh(script)
    made.mount("/sys/fs/cgroup", "cgroup", "rw", kind="cgroup")
    container = scopes.start(made)
    container.wait_for("up")
    path = scopes.bed.cgroup(f"/{SLICE}/t-{container.id}.scope")
    assert (path / "a/b/cgroup.procs").read_text()
    assert container.delete("--force").rc == 0
    assert not path.exists() and not is_loaded(container)


def test_a_shared_pid_namespace(scopes: Driver, bundle: MakeBundle) -> None:
    made = bundle().without_namespace("pid").sh("sleep 1000 & echo up; wait")
    container = scopes.start(made)
    container.wait_for("up")
    path = scopes.cgroup(container)
    assert container.kill("KILL").rc == 0
    container.wait()
    assert container.delete("--force").rc == 0
    assert not path.exists() and not is_loaded(container)


@pytest.mark.gpurun_only
def test_a_failed_create_leaves_no_unit(scopes: Driver, bundle: MakeBundle) -> None:
    container = scopes.create(bundle().args("/no/such/program"), check=False)
    assert container.result.rc == 1
    assert not is_loaded(container) and not scopes.bed.cgroup(f"/{SLICE}/t-{container.id}.scope").exists()


@pytest.mark.gpurun_only
def test_a_unit_of_that_name(scopes: Driver, bundle: MakeBundle) -> None:
    first = scopes.start(bundle().args("sleep", "1000"))
    made = bundle()
    made.linux["cgroupsPath"] = f"{SLICE}:t:{first.id}"
    text = scopes.runtime.refused(made, globals_=("--systemd-cgroup",))
    assert "container's cgroup is not empty: 1 process(es) found" in text
    assert first.state()["status"] == "running", "the other container is none the worse"


def test_a_frozen_cgroup(scopes: Driver, bundle: MakeBundle) -> None:
    """Refused as with the other driver, whether it is the scope's own or a slice above it: create would wait for ever."""
    made = bundle().args("sleep", "1000")
    container_id = scopes.place(made)
    slice_of_it = scopes.bed.cgroup(f"/{SLICE}")
    own = slice_of_it / f"t-{container_id}.scope"
    own.mkdir(parents=True)
    (own / "cgroup.freeze").write_text("1")
    text = scopes.runtime.refused(made, container_id=container_id, globals_=scopes.options, timeout=20)
    assert "container's cgroup unexpectedly frozen" in text
    own.rmdir()
    assert not is_loaded_unit(f"t-{container_id}.scope")


@pytest.mark.gpurun_only
def test_a_frozen_slice(scopes: Driver, bundle: MakeBundle) -> None:
    first = scopes.start(bundle().args("sleep", "1000"))
    slice_of_it = scopes.cgroup(first).parent
    (slice_of_it / "cgroup.freeze").write_text("1")
    made = bundle().args("sleep", "1000")
    try:
        text = scopes.runtime.refused(made, container_id=scopes.place(made), globals_=scopes.options, timeout=20)
        assert f"container's cgroup unexpectedly frozen: /sys/fs/cgroup/{SLICE} is frozen, with everything below it" in text
    finally:
        (slice_of_it / "cgroup.freeze").write_text("0")


def test_a_killed_create_can_be_deleted(scopes: Driver, bundle: MakeBundle) -> None:
    """The hook keeps create from going on; nobody is left to clean up but delete."""
    made: Bundle = bundle()
    hook = made.directory / "hook"
    hook.write_text(
        f"#!/bin/sh\necho $$ >{made.directory}/pid; mv {made.directory}/pid {made.directory}/reached; exec sleep 1000\n"
    )
    hook.chmod(0o755)
    made.config["hooks"] = {"createRuntime": [{"path": str(hook)}]}
    container_id = scopes.place(made)
    made.write()
    files = Path(tempfile.mkdtemp(dir=scopes.runtime.directory))
    create = scopes.runtime.popen(
        "create", "--bundle", str(made.directory), container_id, files=files, globals_=scopes.options
    )
    while not (made.directory / "reached").exists():
        assert create.poll() is None, (files / "err").read_text()
    path = scopes.bed.cgroup(f"/{SLICE}/t-{container_id}.scope")
    assert path.exists()
    create.kill()
    create.wait()  # the init ends when it sees that; systemd may be as quick with the scope as delete
    pid = int((made.directory / "reached").read_text())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)  # ours by now
    assert scopes.runtime("delete", "--force", container_id).rc == 0
    assert not path.exists()


@pytest.mark.gpurun_only
def test_systemd_is_re_executed_meanwhile(scopes: Driver, bundle: MakeBundle) -> None:
    """As an update of its package has it done: it hangs up, and lets nobody in for a while."""
    ended = threading.Event()

    def again_and_again() -> None:
        while not ended.is_set():
            began = time.monotonic()
            subprocess.run(["systemctl", "daemon-reexec"], check=False, capture_output=True)
            ended.wait(time.monotonic() - began)  # as long as it was away

    other = threading.Thread(target=again_and_again)
    other.start()
    try:
        for _ in range(3):
            made = bundle().args("sleep", "1000")
            limits = "pids" in scopes.bed.controllers
            if limits:
                made.linux["resources"]["pids"] = {"limit": 33}
            container = scopes.start(made)
            path = scopes.cgroup(container)
            assert (path / "cgroup.procs").read_text().split() == [str(container.pid)]
            if limits:
                assert (path / "pids.max").read_text() == "33\n"
                assert scopes.runtime("update", "--pids-limit", "44", container.id).rc == 0
                assert (path / "pids.max").read_text() == "44\n"
            deleted = container.delete("--force")
            assert deleted.rc == 0 and not path.exists(), deleted
    finally:
        ended.set()
        other.join()


@pytest.mark.needs("memory", "pids")
def test_a_slice_as_the_unit(scopes: Driver, bundle: MakeBundle) -> None:
    """As under runc: a name that ends in .slice is a unit of its own, and the container's processes are in it."""
    container_id = scopes.runtime.new_id()
    unit = f"{SLICE.removesuffix('.slice')}-{container_id}.slice"
    made = bundle().args("sleep", "1000")
    made.linux["cgroupsPath"] = f"{SLICE}:t:{unit}"
    made.linux["resources"] |= {"pids": {"limit": 33}, "memory": {"limit": 64 << 20}}
    container = scopes.runtime.start(made, container_id=container_id, globals_=scopes.options)
    assert container.cgroup() == f"/{SLICE}/{unit}"
    path = scopes.bed.cgroup(f"/{SLICE}/{unit}")
    for command in (["true"], ["systemctl", "daemon-reload"]):
        subprocess.run(command, check=True)
        assert (path / "cgroup.procs").read_text().split() == [str(container.pid)]
        assert (path / "pids.max").read_text() == "33\n" and (path / "memory.max").read_text() == f"{64 << 20}\n"
    assert "TasksMax=33" in systemctl("show", unit, "-p", "TasksMax")
    assert scopes.runtime("update", "--pids-limit", "44", container_id).rc == 0
    assert (path / "pids.max").read_text() == "44\n"
    assert container.delete("--force").rc == 0
    assert not path.exists() and unit not in systemctl("list-units", "--all", "--no-legend", unit)


@pytest.mark.needs("memory", "cpu", "io", "pids")
@pytest.mark.gpurun_only
def test_an_update_that_is_refused_changes_nothing(scopes: Driver, bundle: MakeBundle) -> None:
    """Neither the kernel's values nor what systemd would write again; the error names the file."""
    made = bundle().args("sleep", "1000")
    made.linux["resources"] |= {
        "memory": {"limit": 64 << 20, "swap": 64 << 20},
        "pids": {"limit": 33},
        "cpu": {"shares": 512},
    }
    container = scopes.start(made)
    path = scopes.cgroup(container)
    files = ("memory.max", "memory.swap.max", "pids.max", "cpu.weight", "cpu.max", "io.weight")
    names = ("MemoryMax", "MemorySwapMax", "TasksMax", "CPUWeight", "CPUQuotaPerSecUSec")
    before = {file: (path / file).read_text() for file in files}
    shown = show(container, *names)
    for refused in ({"memory.high": "nonsense"}, {"io.weight": "default 0"}, {"no.such": "1"}):
        asked = {
            "memory": {"limit": 48 << 20, "swap": 48 << 20},
            "pids": {"limit": 7},
            "cpu": {"shares": 2048, "quota": 50_000, "period": 100_000},
            "unified": refused,
        }
        result = scopes.runtime("update", "--resources", "-", container.id, stdin=json.dumps(asked).encode())
        (file,) = refused
        assert result.rc == 1 and file in result.text, result
        assert {name: (path / name).read_text() for name in files} == before
        assert show(container, *names) == shown
        systemctl("daemon-reload")
        assert {name: (path / name).read_text() for name in files} == before
    saved = json.loads((scopes.runtime.root / container.id / "config.json").read_text())
    assert saved["linux"]["resources"]["memory"]["limit"] == 64 << 20
    assert scopes.runtime("update", "--memory", "32m", "--memory-swap", "32m", container.id).rc == 0
    assert (path / "memory.max").read_text() == f"{32 << 20}\n"


@pytest.mark.gpurun_only
@pytest.mark.needs("memory")
def test_memory_high_follows_an_update(scopes: Driver, bundle: MakeBundle) -> None:
    made = bundle().args("sleep", "1000")
    made.config["annotations"] = {"dev.gpurun.memory.high": "0.5"}
    made.linux["resources"]["memory"] = {"limit": 64 << 20}
    container = scopes.start(made)
    path = scopes.cgroup(container)
    for limit, high in (("32m", f"{16 << 20}\n"), ("-1", "max\n"), ("48m", f"{24 << 20}\n")):
        assert scopes.runtime("update", "--memory", limit, container.id).rc == 0
        for command in (["true"], ["systemctl", "daemon-reload"]):
            subprocess.run(command, check=True)
            assert (path / "memory.high").read_text() == high
