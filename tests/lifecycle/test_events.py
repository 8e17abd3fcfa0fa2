"""events: what a container uses, as lines of JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

FOREVER = "echo up; while :; do sleep 0.02; done"


def wait_for_lines(path: Path, count: int) -> list[str]:
    end = time.monotonic() + 30
    while len(path.read_text().splitlines()) < count:
        assert time.monotonic() < end, path.read_text()
        time.sleep(0.01)
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
    assert {"avg10", "avg60", "avg300", "total"} == data["cpu"]["psi"]["some"].keys()


@pytest.mark.controller("hugetlb")
def test_huge_pages(runtime: Runtime, bundle: MakeBundle) -> None:
    if runtime.name == "runc":
        pytest.skip("runc 1.1 on a hybrid machine looks at cgroup v1")
    container = runtime.start(bundle().sh(FOREVER))
    assert json.loads(runtime("events", "--stats", container.id).out)["data"]["hugetlb"]["2MB"]["usage"] == 0


@pytest.mark.not_on("runc 1.1", reason="reports nothing on a hybrid machine")
def test_reports_until_the_end(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    files = runtime._files()
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
    files = runtime._files()
    events = runtime.popen("events", "--interval", "10h", container.id, files=files)
    time.sleep(0.2)
    assert events.poll() is None
    container.kill("KILL")
    container.wait()
    assert events.wait(30) == 0
    assert (files / "out").read_text() == ""


@pytest.mark.controller("memory")
def test_out_of_memory(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("echo up; read -r _ </run/go; head -c 200m /dev/zero | tail -n 1 >/dev/null; sleep 1000")
    b.linux["resources"]["memory"] = {"limit": 32 << 20, "swap": 32 << 20}
    b.mount("/run", "tmpfs", kind="tmpfs")
    b.sh("mkfifo /run/go; " + b.process["args"][-1])
    container = runtime.start(b)
    container.wait_for("up")
    files = runtime._files()
    events = runtime.popen("events", "--interval", "1h", container.id, files=files)
    time.sleep(0.3)
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
