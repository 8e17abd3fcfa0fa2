"""Scheduling, memory placement, labels: config → numbers, and every refusal with its JSON path."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.engine.plan.records import Knobs
from gpurun.engine.plan.scheduling import exec_affinity
from gpurun.oci.config import Process
from gpurun.record import replace
from tests.engine.plan.planning import HOST, base, plan, refusal, set_path


def test_nothing_asked_for_is_nothing_planned() -> None:
    process = plan(base()).init.process
    assert process.knobs is None
    assert (process.apparmor_profile, process.selinux_label) == ("", "")


def test_all_knobs() -> None:
    config = base()
    config["process"]["scheduler"] = {"policy": "SCHED_BATCH", "nice": -7, "flags": ["SCHED_FLAG_RESET_ON_FORK"]}
    config["process"]["ioPriority"] = {"class": "IOPRIO_CLASS_BE", "priority": 6}
    config["linux"]["personality"] = {"domain": "LINUX32", "flags": ["ADDR_NO_RANDOMIZE"]}
    config["linux"]["memoryPolicy"] = {"mode": "MPOL_INTERLEAVE", "nodes": "0,2-3", "flags": ["MPOL_F_STATIC_NODES"]}
    made = plan(config)
    assert made.init.process.knobs == Knobs(
        scheduler=(3, 1, -7, 0, 0, 0, 0), io_priority=2 << 13 | 6, personality=8, memory_policy=(3 | 1 << 15, 0b1101)
    )
    assert made.warnings == ("ignoring unsupported personality flags: ADDR_NO_RANDOMIZE",)


def test_deadline() -> None:
    times = {"runtime": 10_000_000, "deadline": 20_000_000, "period": 30_000_000}
    knobs = plan(set_path(base(), "process.scheduler", {"policy": "SCHED_DEADLINE", **times})).init.process.knobs
    assert knobs is not None
    assert knobs.scheduler == (6, 0, 0, 0, 10_000_000, 20_000_000, 30_000_000)


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("process.scheduler", {}, "process.scheduler.policy: is missing, scheduler policy is required"),
        ("process.scheduler", {"policy": "SCHED_X"}, 'process.scheduler.policy: "SCHED_X" is unknown, it must be one of '),
        ("process.scheduler", {"policy": "SCHED_OTHER", "nice": 20}, "process.scheduler.nice: invalid scheduler.nice: 20"),
        ("process.scheduler", {"policy": "SCHED_BATCH", "nice": -21}, "process.scheduler.nice: invalid scheduler.nice: -21"),
        (
            "process.scheduler",
            {"policy": "SCHED_OTHER", "priority": 1},
            "process.scheduler.priority: can only be specified for the SCHED_FIFO or SCHED_RR policy",
        ),
        ("process.scheduler", {"policy": "SCHED_FIFO"}, "process.scheduler.priority: 0 is out of range"),
        (
            "process.scheduler",
            {"policy": "SCHED_RR", "priority": 1, "runtime": 5},
            "process.scheduler.runtime: can only be specified for the SCHED_DEADLINE policy",
        ),
        (
            "process.scheduler",
            {"policy": "SCHED_DEADLINE", "deadline": 10_000_000},
            "process.scheduler.runtime: is missing, SCHED_DEADLINE takes a runtime and a deadline",
        ),
        (
            "process.scheduler",
            {"policy": "SCHED_DEADLINE", "runtime": 10_000_000},
            "process.scheduler.deadline: is missing, SCHED_DEADLINE takes a runtime and a deadline",
        ),
        (
            "process.scheduler",
            {"policy": "SCHED_DEADLINE", "runtime": 1023, "deadline": 10_000_000},
            "process.scheduler.runtime: 1023 ns is too short, the least is 1024 ns",
        ),
        (
            "process.scheduler",
            {"policy": "SCHED_DEADLINE", "runtime": 20_000_000, "deadline": 10_000_000},
            "process.scheduler: the runtime must not exceed the deadline, nor the deadline the period",
        ),
        (
            "process.scheduler",
            {"policy": "SCHED_DEADLINE", "runtime": 10_000_000, "deadline": 20_000_000, "period": 15_000_000},
            "process.scheduler: the runtime must not exceed the deadline, nor the deadline the period",
        ),
        (
            "process.scheduler",
            {"policy": "SCHED_IDLE", "flags": ["SCHED_FLAG_RESET_ON_FORK", "X"]},
            'process.scheduler.flags[1]: "X" is unknown',
        ),
        ("process.ioPriority", {}, 'process.ioPriority.class: "" is unknown, it must be one of IOPRIO_CLASS_RT'),
        (
            "process.ioPriority",
            {"class": "IOPRIO_CLASS_RT", "priority": -1},
            "process.ioPriority.priority: -1 is out of range",
        ),
        (
            "process.execCPUAffinity",
            {"final": "3-1"},
            'process.execCPUAffinity.final: "3-1" is not a list of numbers below 8192 like 0-3,7',
        ),
        (
            "process.apparmorProfile",
            "p",
            'process.apparmorProfile: "p" cannot be applied: AppArmor is not enabled on this host',
        ),
        ("process.selinuxLabel", "l", "process.selinuxLabel: selinux label is specified in config, but selinux is disabled"),
        ("linux.mountLabel", "l", "linux.mountLabel: selinux label is specified in config, but selinux is disabled"),
        (
            "linux.personality",
            {"domain": "BSD"},
            'linux.personality.domain: "BSD" is unknown, it must be one of LINUX, LINUX32',
        ),
        ("linux.memoryPolicy", {"mode": "MPOL_BIND"}, "linux.memoryPolicy.nodes: MPOL_BIND needs at least one node"),
        ("linux.memoryPolicy", {"mode": "MPOL_LOCAL", "nodes": "0"}, "linux.memoryPolicy.nodes: MPOL_LOCAL takes no nodes"),
        ("linux.memoryPolicy", {"mode": "x"}, 'linux.memoryPolicy.mode: "x" is unknown'),
        (
            "linux.memoryPolicy",
            {"mode": "MPOL_PREFERRED", "nodes": "0", "flags": ["MPOL_F_STATIC_NODES", "MPOL_F_RELATIVE_NODES"]},
            "linux.memoryPolicy.flags: MPOL_F_STATIC_NODES and MPOL_F_RELATIVE_NODES exclude each other",
        ),
        ("linux.intelRdt", {"closID": "a"}, "linux.intelRdt: intelRdt is specified in config, but resctrl is not mounted"),
    ],
)
def test_refusals(path: str, value: Any, text: str) -> None:
    assert refusal(set_path(base(), path, value)).startswith(text)


def test_labels_where_the_host_has_the_modules() -> None:
    config = base()
    config["process"]["apparmorProfile"], config["process"]["selinuxLabel"] = "docker-default", "u:r:t:s0"
    config["linux"]["mountLabel"] = "u:object_r:t:s0:c1,c2"
    init = plan(config, replace(HOST, apparmor=True, selinux=True)).init
    assert (init.process.apparmor_profile, init.process.selinux_label) == ("docker-default", "u:r:t:s0")
    labels = {m.destination: m.label for m in init.mounts}
    assert {k for k, v in labels.items() if not v} == {"/proc", "/sys"}
    assert labels["/dev"] == labels["/dev/mqueue"] == "u:object_r:t:s0:c1,c2"


def test_exec_affinity_is_little_endian_masks() -> None:
    process = Process(args=(), cwd="/", exec_cpu_affinity={"initial": "0,9", "final": "1-3"})
    assert exec_affinity(process) == (b"\x01\x02", b"\x0e")
    assert exec_affinity(Process(args=(), cwd="/")) == (b"", b"")
