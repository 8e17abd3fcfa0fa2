"""Scheduling and memory placement of the process: scheduler, ioPriority, personality, memoryPolicy, CPU affinity."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import Container, Runtime

pytestmark = pytest.mark.native

SLEEP = ("sh", "-c", "echo up; sleep 1000")


def started(runtime: Runtime, bundle: MakeBundle, process: dict[str, Any], linux: dict[str, Any] | None = None) -> Container:
    b = bundle().args(*SLEEP)
    b.process.update(process)
    b.linux.update(linux or {})
    container = runtime.start(b)
    container.wait_for("up")
    return container


@pytest.mark.conforms("config.md: Linux Process", level="MUST", what="`scheduler`: policy and nice")
@pytest.mark.not_on("runc 1.1", reason="does not know the field")
@pytest.mark.parametrize(
    ("scheduler", "policy", "check"),
    [
        ({"policy": "SCHED_BATCH", "nice": 5}, os.SCHED_BATCH, 5),
        ({"policy": "SCHED_OTHER", "nice": -3}, os.SCHED_OTHER, -3),
        ({"policy": "SCHED_IDLE"}, os.SCHED_IDLE, os.nice(0)),  # sched(7): the kernel sets no nice value with it
    ],
)
def test_scheduler(runtime: Runtime, bundle: MakeBundle, scheduler: dict[str, Any], policy: int, check: int) -> None:
    container = started(runtime, bundle, {"scheduler": scheduler})
    assert os.sched_getscheduler(container.pid) == policy
    assert os.getpriority(os.PRIO_PROCESS, container.pid) == check


@pytest.mark.conforms("config.md: Linux Process", level="MUST", what="`scheduler`: priority and flags")
@pytest.mark.not_on("runc 1.1", reason="does not know the field")
def test_real_time_scheduler(runtime: Runtime, bundle: MakeBundle) -> None:
    flags = ["SCHED_FLAG_RESET_ON_FORK"]
    container = started(runtime, bundle, {"scheduler": {"policy": "SCHED_RR", "priority": 7, "flags": flags}})
    assert os.sched_getscheduler(container.pid) == os.SCHED_RR | os.SCHED_RESET_ON_FORK
    assert os.sched_getparam(container.pid).sched_priority == 7


@pytest.mark.conforms("config.md: Linux Process", level="MUST", what="`ioPriority`: class and priority")
@pytest.mark.not_on("runc 1.1", reason="does not know the field")
@pytest.mark.skipif(not shutil.which("ionice"), reason="ionice is not installed")
@pytest.mark.parametrize(
    ("kind", "level", "said"),
    [("BE", 6, "best-effort: prio 6"), ("RT", 1, "realtime: prio 1"), ("IDLE", 0, "idle")],
)
def test_io_priority(runtime: Runtime, bundle: MakeBundle, kind: str, level: int, said: str) -> None:
    container = started(runtime, bundle, {"ioPriority": {"class": f"IOPRIO_CLASS_{kind}", "priority": level}})
    out = subprocess.run(["ionice", "-p", str(container.pid)], capture_output=True, text=True, check=True).stdout
    assert out.strip().startswith(said)


@pytest.mark.not_on("runc 1.1", reason="does not know the field")
@pytest.mark.parametrize(("domain", "bits"), [("LINUX32", "00000008"), ("LINUX", "00000000")])
def test_personality(runtime: Runtime, bundle: MakeBundle, domain: str, bits: str) -> None:
    container = started(runtime, bundle, {}, {"personality": {"domain": domain}})
    assert container.proc("personality").read_text().strip() == bits


@pytest.mark.conforms("config-linux.md: Memory policy", level="MUST", what="`memoryPolicy`: mode, nodes and flags")
@pytest.mark.not_on("runc 1.1", reason="does not know the field")
@pytest.mark.not_on("runc 1.3", reason="does not know the field")
@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="this kernel has no NUMA support")
def test_memory_policy(runtime: Runtime, bundle: MakeBundle) -> None:
    policy = {"mode": "MPOL_BIND", "nodes": "0", "flags": ["MPOL_F_STATIC_NODES"]}
    container = started(runtime, bundle, {}, {"memoryPolicy": policy})
    assert " bind=static:0 " in container.proc("numa_maps").read_text()


@pytest.mark.gpurun_only
@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="this kernel has no NUMA support")
def test_memory_of_a_node_that_is_not_there(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.linux["memoryPolicy"] = {"mode": "MPOL_BIND", "nodes": "63"}
    assert "set linux.memoryPolicy (has this host these nodes?): invalid argument" in runtime.refused(b)


@pytest.mark.not_on("runc 1.1", reason="leaves it as it was")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_callers_affinity_does_not_leak_in(runtime: Runtime, bundle: MakeBundle) -> None:
    one = min(os.sched_getaffinity(0))
    container = runtime.create(bundle().args(*SLEEP), preexec=lambda: os.sched_setaffinity(0, {one}))
    assert os.sched_getaffinity(container.pid) == os.sched_getaffinity(0)


@pytest.mark.gpurun_only
@pytest.mark.parametrize(
    ("where", "value", "text"),
    [
        ("scheduler", {"nice": 3}, "process.scheduler.policy: is missing"),
        ("ioPriority", {"class": "IOPRIO_CLASS_BE", "priority": 8}, "process.ioPriority.priority: 8 is out of range"),
        ("execCPUAffinity", {"initial": "a-b"}, "process.execCPUAffinity.initial: "),
    ],
)
def test_mistakes_are_refused_before_anything_is_made(
    runtime: Runtime, bundle: MakeBundle, where: str, value: dict[str, Any], text: str
) -> None:
    b = bundle()
    b.process[where] = value
    assert text in runtime.refused(b)
