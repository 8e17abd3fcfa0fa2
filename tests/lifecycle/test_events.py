"""events: what a container uses, as lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.native.waiting import wait_until
from tests.nvml import compile_stub
from tests.simdriver import VERSION, SimulatedDriver, uuid

pytestmark = pytest.mark.native

FOREVER = "echo up; while :; do sleep 0.02; done"


def wait_for_lines(path: Path, count: int) -> list[str]:
    wait_until(lambda: len(path.read_text().splitlines()) >= count)
    return path.read_text().splitlines()


def test_one_report(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    result = runtime("events", "--stats", container.id)
    assert (result.rc, result.err) == (0, "")
    (line,) = result.out.splitlines()
    event = json.loads(line)
    assert (event["type"], event["id"]) == ("stats", container.id)
    assert {"cpu", "cpuset", "memory", "pids", "blkio", "hugetlb", "intel_rdt", "network_interfaces"} <= event["data"].keys()
    assert event["data"]["cpu"]["usage"]["total"] > 0


@pytest.mark.gpurun_only
def test_pressure(runtime: Runtime, bundle: MakeBundle) -> None:
    if not Path("/proc/pressure/cpu").exists():
        pytest.skip("this kernel has no PSI")
    container = runtime.start(bundle().sh(FOREVER))
    data = json.loads(runtime("events", "--stats", container.id).out)["data"]
    for what in ("cpu", "memory", "blkio"):
        assert {"avg10", "avg60", "avg300", "total"} == data[what]["psi"]["some"].keys() == data[what]["psi"]["full"].keys()


@pytest.mark.gpurun_only
@pytest.mark.parametrize("mode", ["well", "hang", "crash"])
def test_gpus(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, mode: str) -> None:
    """The container's GPU and no other; a driver that hangs or crashes costs the numbers, not the report."""
    library = next(host.path.rglob(f"libnvidia-ml.so.{VERSION}"))
    library.unlink()
    compile_stub(library, mode=mode)
    made = bundle().sh(FOREVER)
    made.process["env"] += ["NVIDIA_VISIBLE_DEVICES=1"]
    container = runtime.start(made, env=ENVIRONMENT | host.env)
    container.wait_for("up")
    result = runtime("events", "--stats", container.id, env=ENVIRONMENT | host.env)
    assert result.rc == 0, result
    data = json.loads(result.out)["data"]
    if mode == "well":
        (gpu,) = data["gpus"]
        assert gpu["uuid"] == uuid(1) and gpu["memory"]["container"] == 0 == gpu["processes"]
        assert gpu["memory"]["total"] == 80 << 30 and gpu["utilization"] == {"gpu": 42, "memory": 7}
    else:
        assert "gpus" not in data and data["cpu"] and "no numbers of the GPUs: NVML" in result.text


@pytest.mark.gpurun_only
def test_without_gpus_nobody_is_asked(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(FOREVER))
    assert "gpus" not in json.loads(runtime("events", "--stats", container.id).out)["data"]


@pytest.mark.needs("hugetlb")
def test_huge_pages(runtime: Runtime, bundle: MakeBundle) -> None:
    if runtime.name == "runc":
        pytest.skip("runc 1.1 on a hybrid machine looks at cgroup v1")
    container = runtime.start(bundle().sh(FOREVER))
    assert json.loads(runtime("events", "--stats", container.id).out)["data"]["hugetlb"]["2MB"]["usage"] == 0


@pytest.mark.not_on("runc 1.1", reason="reports nothing on a hybrid machine")
def test_reports_until_the_end(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    files = runtime.new_files()
    events = runtime.popen("events", "--interval", "50ms", container.id, files=files)
    lines = wait_for_lines(files / "out", 3)
    assert {json.loads(line)["type"] for line in lines} == {"stats"}
    container.kill("KILL")
    container.wait()
    assert events.wait(30) == 0
    assert (files / "err").read_text() == ""


@pytest.mark.gpurun_only
def test_the_end_does_not_wait_for_the_next_report(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    files = runtime.new_files()
    events = runtime.popen("events", "--interval", "10h", container.id, files=files)
    wait_until(
        lambda: has_open(events.pid, "/cgroup.events"), meanwhile=lambda: None if events.poll() is None else "it ended"
    )
    container.kill("KILL")
    container.wait()
    assert events.wait(30) == 0
    assert (files / "out").read_text() == ""


def looks_at_memory(pid: int) -> bool:
    """Whether the process has memory.events open, as gpurun does, or an inotify(7) descriptor, as runc does."""
    return has_open(pid, "/memory.events", ":inotify")


def has_open(pid: int, *ends: str) -> bool:
    """Whether the process has a file open whose path has one of these *ends*."""
    with contextlib.suppress(FileNotFoundError):  # it closes others meanwhile
        return any(os.readlink(fd).endswith(ends) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.needs("memory")
def test_out_of_memory(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("echo up; read -r _ </run/go; head -c 200m /dev/zero | tail -n 1 >/dev/null; sleep 1000")
    b.linux["resources"]["memory"] = {"limit": 32 << 20, "swap": 32 << 20}
    b.mount("/run", "tmpfs", kind="tmpfs")
    b.sh("mkfifo /run/go; " + b.process["args"][-1])
    container = runtime.start(b)
    container.wait_for("up")
    files = runtime.new_files()
    events = runtime.popen("events", "--interval", "1h", container.id, files=files)
    wait_until(lambda: looks_at_memory(events.pid))
    runtime("exec", container.id, "sh", "-c", "echo >/run/go")
    assert json.loads(wait_for_lines(files / "out", 1)[0]) == {"type": "oom", "id": container.id}
    container.kill("KILL")
    container.wait()
    assert events.wait(30) == 0


@pytest.mark.parametrize("interval", ["0s", "-5s", "5", "soon", ""])
def test_bad_interval(runtime: Runtime, bundle: MakeBundle, interval: str) -> None:
    container = runtime.start(bundle().sh(FOREVER))
    assert runtime("events", "--interval", interval, container.id).rc != 0


def test_stopped(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().args("true"))
    container.wait()
    for options in ((), ("--stats",)):
        result = runtime("events", *options, container.id)
        assert result.rc == 1
        assert f"container with id {container.id} is not running" in result.text


def test_unknown_container(runtime: Runtime) -> None:
    result = runtime("events", "--stats", "nosuchcontainer")
    assert result.rc == 1
    assert "does not exist" in result.text
