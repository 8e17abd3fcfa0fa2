"""Scheduling, memory placement, labels, resctrl: config → numbers, and every refusal with its JSON path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpurun.engine.knobs import exec_affinity, parse_list
from gpurun.engine.process import Knobs
from gpurun.engine.rdt import RdtPlan, apply_rdt, plan_rdt, remove_rdt, update_rdt
from gpurun.errors import ConfigError, GpurunError
from gpurun.oci.config import Process
from gpurun.record import replace
from tests.engine.planning import HOST, base, plan, refusal, set_path


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
            'process.execCPUAffinity.final: "3-1" is no range of numbers below 8192',
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


@pytest.mark.parametrize("text", ["", ",", "1,", "-1", "1-", "x", "1--2", "8192", "2-1", "\u0661", "0x1"])
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_list(text, "here")


def rdt(obj: dict[str, Any]) -> RdtPlan:
    return plan_rdt(obj, "c1", True, "/r")


def test_resctrl_groups() -> None:
    assert rdt({}) == RdtPlan("/r/c1", True)
    assert rdt({"closID": "gold"}) == RdtPlan("/r/gold", False)
    full = {"closID": "gold", "l3CacheSchema": "L3:0=f", "memBwSchema": "MB:0=50", "schemata": ["L2:0=1"]}
    assert rdt({**full, "enableMonitoring": True}) == RdtPlan(
        "/r/gold", True, ("L3:0=f", "MB:0=50", "L2:0=1"), "/r/gold/mon_groups/c1"
    )


@pytest.mark.parametrize(
    ("obj", "where"),
    [
        ({"closID": "../x"}, "linux.intelRdt.closID"),
        ({"closID": ".."}, "linux.intelRdt.closID"),
        ({"memBwSchema": "MB:0=1\nL3:0=1"}, "linux.intelRdt.memBwSchema"),
        ({"l3CacheSchema": "MB:0=1"}, "linux.intelRdt.l3CacheSchema"),
        ({"schemata": ["L3:0=1", "a\nb"]}, "linux.intelRdt.schemata[1]"),
    ],
)
def test_resctrl_refusals(obj: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as raised:
        rdt(obj)
    assert raised.value.where == where


def test_resctrl_on_paper(tmp_path: Any) -> None:
    """A plain directory stands for resctrl: what is there before stays, what is made is noted."""
    (tmp_path / "schemata").touch()
    group = tmp_path / "gold"
    group.mkdir()
    for name in ("schemata", "tasks"):
        (group / name).touch()
    record = tmp_path / "record"
    apply_rdt(plan_rdt({"closID": "gold", "schemata": ["L3:0=f"]}, "c1", True, str(tmp_path)), 42, str(record))
    assert (group / "schemata").read_text() == "L3:0=f\n"
    assert (group / "tasks").read_text() == "42"
    assert not record.exists()
    with pytest.raises(ConfigError, match=r'closID: ".*/silver" does not exist'):
        apply_rdt(plan_rdt({"closID": "silver"}, "c1", True, str(tmp_path)), 42, str(record))
    (tmp_path / "silver").mkdir()
    record.write_text(f"{tmp_path}/silver\n{tmp_path}/silver/mon_groups/c1")
    remove_rdt(str(record))
    assert not (tmp_path / "silver").exists()


def test_resctrl_update_on_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New schemata for a group that is there; one that is refused leaves what was; a container without one gets one."""
    root, record = str(tmp_path), str(tmp_path / "record")
    plan = plan_rdt({"closID": "a", "l3CacheSchema": "L3:0=f"}, "c1", True, root)
    (tmp_path / "a").mkdir()
    schemata = tmp_path / "a/schemata"
    schemata.write_text("L3:0=ff\nMB:0=100\n")
    update_rdt(plan, ("L3:0=f",), (1,), record)
    assert schemata.read_text().startswith("L3:0=f\n") and not Path(record).exists()

    schemata.write_text("L3:0=ff\nMB:0=100\n")
    written: list[str] = []

    def write(path: str, text: str) -> None:
        written.append(text)
        if "bad" in text:
            raise GpurunError("refused")

    monkeypatch.setattr("gpurun.engine.rdt._write", write)
    with pytest.raises(GpurunError, match="refused"):
        update_rdt(plan, ("L3:0=f", "bad"), (1,), record)
    assert written == ["L3:0=f\nbad\n", "L3:0=ff\nMB:0=100\n"]

    written.clear()
    fresh = plan_rdt({"memBwSchema": "MB:0=50"}, "c2", True, root)
    update_rdt(fresh, ("MB:0=50",), (7, 8), record)
    assert [text for text in written if text.isdigit()] == ["7", "8"] and "MB:0=50\n" in written
    assert Path(record).read_text() == fresh.group
    remove_rdt(record)
    assert not Path(fresh.group).exists()
