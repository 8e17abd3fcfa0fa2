"""linux.intelRdt (config-linux.md "IntelRdt" of the specification 1.3), on a directory that behaves as resctrl does.

Machines with resctrl are rare, and their classes few: what is tested here is which directories and files are touched.
"""

from __future__ import annotations

import json
import os
import posix
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.engine import state as store
from gpurun.engine.caller import resctrl as rdt
from gpurun.engine.caller.host_resources import lend_resctrl
from gpurun.engine.caller.resctrl import apply_rdt, remove_rdt, update_rdt
from gpurun.engine.caller.rollback import Rollback
from gpurun.engine.caller.update import update_container
from gpurun.engine.plan.resctrl import RdtPlan, plan_rdt
from gpurun.errors import ConfigError, GpurunError
from gpurun.oci.resources import Resources
from gpurun.record import replace
from tests.engine.plan.planning import base
from tests.engine.plan.planning import plan as plan_of

DEFAULT = "    MB:0= 100;1= 100\n    L3:0=fff;1=fff\n"


class Resctrl:
    """A directory whose files are written as resctrl's: the kernel makes them with the group, and merges schemata."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths: dict[int, str] = {}
        self.written: list[tuple[str, str]] = []
        self.refused: str = ""
        self._fill(root)
        (root / "info/MB").mkdir(parents=True)
        (root / "info/MB/bandwidth_gran").write_text("10\n")
        (root / "info/last_cmd_status").write_text("ok\n")

    def _fill(self, group: Path) -> None:
        (group / "schemata").write_text(DEFAULT)
        (group / "tasks").touch()
        if group.parent.name != "mon_groups":
            (group / "mon_groups").mkdir()

    def __getattr__(self, name: str) -> Any:
        return getattr(posix, name)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        posix.mkdir(path, mode)
        self._fill(Path(path))

    def rmdir(self, path: str) -> None:
        posix.stat(path)
        shutil.rmtree(path)

    def open(self, path: str, *args: Any) -> int:
        fd = posix.open(path, *args)
        self.paths[fd] = path
        return fd

    def write(self, fd: int, data: bytes) -> int:
        path = Path(self.paths[fd])
        if not path.is_relative_to(self.root):
            return posix.write(fd, data)
        text = data.decode()
        self.written.append((str(path.relative_to(self.root)), text))
        if self.refused and self.refused in text:
            (self.root / "info/last_cmd_status").write_text("Mask out of range\n")
            raise OSError(22, "Invalid argument")
        if path.name == "tasks":
            path.write_text(path.read_text() + text + "\n")
            return len(data)
        lines = {line.split(":")[0].strip(): line.strip() for line in path.read_text().splitlines()}
        for line in text.splitlines():
            name, _, given = line.partition(":")
            domains = {part.split("=")[0]: part for part in f"{lines[name].partition(':')[2]};{given}".split(";")}
            lines[name] = f"{name}:{';'.join(domains.values())}"
        path.write_text("".join(f"{line}\n" for line in lines.values()))
        return len(data)

    def tasks(self, group: str) -> list[str]:
        return (self.root / group / "tasks").read_text().split()

    def schemata(self, group: str) -> str:
        return (self.root / group / "schemata").read_text()


@pytest.fixture
def resctrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resctrl:
    (tmp_path / "resctrl").mkdir()
    made = Resctrl(tmp_path / "resctrl")
    monkeypatch.setattr(rdt, "posix", made)
    return made


Apply = Callable[..., list[Callable[[], None]]]


@pytest.fixture
def apply(resctrl: Resctrl, tmp_path: Path) -> Apply:
    """``apply(config, id, pid)``: as create does it; returns what a create that fails later takes back."""

    def go(obj: dict[str, Any], container_id: str = "c1", pid: int = 42) -> list[Callable[[], None]]:
        undo: list[Callable[[], None]] = []
        apply_rdt(planned(obj, container_id, str(resctrl.root)), pid, str(tmp_path / container_id), undo.append)
        return undo

    return go


def planned(obj: dict[str, Any], container_id: str = "c1", root: str = "/r") -> RdtPlan:
    return plan_rdt(obj, container_id, True, root)


def test_plans() -> None:
    assert planned({}) == RdtPlan("/r", "/r/c1", own=True, make=True)
    assert planned({"closID": "gold"}) == RdtPlan("/r", "/r/gold", own=False, make=False)
    assert planned({"closID": "/", "enableMonitoring": True}) == RdtPlan("/r", "/r", False, False, (), "/r/mon_groups/c1")
    full = {"closID": "gold", "l3CacheSchema": "L3:0=f", "memBwSchema": "MB:0=50", "schemata": ["L2:0=1"]}
    assert planned({**full, "enableMonitoring": True}) == RdtPlan(
        "/r", "/r/gold", False, True, ("L3:0=f", "MB:0=50", "L2:0=1"), "/r/gold/mon_groups/c1"
    )


@pytest.mark.parametrize("key", ["enableMonitoring", "enableCMT", "enableMBM"])
def test_what_asks_for_a_monitoring_group(key: str) -> None:
    """The specification had the last two until 1.3."""
    assert planned({key: True}).monitor == "/r/c1/mon_groups/c1"
    assert planned({key: False}).monitor == ""


def test_a_memory_bandwidth_line_in_the_cache_schema_comes_first() -> None:
    lines = planned({"l3CacheSchema": "L3:0=f\nMB:0=10\n", "memBwSchema": "MB:0=50"}).schemata
    assert lines == ("L3:0=f", "MB:0=10", "MB:0=50")


@pytest.mark.parametrize(
    ("obj", "where"),
    [
        ({"closID": "../x"}, "linux.intelRdt.closID"),
        ({"closID": "a/b"}, "linux.intelRdt.closID"),
        ({"closID": "//"}, "linux.intelRdt.closID"),
        ({"closID": ".."}, "linux.intelRdt.closID"),
        ({"memBwSchema": "MB:0=1\nL3:0=1"}, "linux.intelRdt.memBwSchema"),
        ({"memBwSchema": "L3:0=1"}, "linux.intelRdt.memBwSchema"),
        ({"schemata": ["L3:0=1", "a\nb"]}, "linux.intelRdt.schemata[1]"),
    ],
)
def test_refusals(obj: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as raised:
        planned(obj)
    assert raised.value.where == where


def test_a_group_of_the_containers_own_goes_with_it(resctrl: Resctrl, apply: Apply, tmp_path: Path) -> None:
    apply({"l3CacheSchema": "L3:0=f", "enableMonitoring": True})
    assert "L3:0=f;1=fff" in resctrl.schemata("c1")
    assert resctrl.tasks("c1") == resctrl.tasks("c1/mon_groups/c1") == ["42"]
    remove_rdt(str(tmp_path / "c1"))
    assert sorted(os.listdir(resctrl.root)) == ["info", "mon_groups", "schemata", "tasks"]


def test_a_group_of_that_name_that_was_there_stays(resctrl: Resctrl, apply: Apply, tmp_path: Path) -> None:
    resctrl.mkdir(str(resctrl.root / "c1"))
    apply({"l3CacheSchema": "L3:0=f", "enableMonitoring": True})
    assert "L3:0=f" in resctrl.schemata("c1")
    remove_rdt(str(tmp_path / "c1"))
    assert os.listdir(resctrl.root / "c1/mon_groups") == []


def test_a_class_is_never_removed_with_a_container(resctrl: Resctrl, apply: Apply, tmp_path: Path) -> None:
    """Two containers of one class: when the first goes, the second keeps it."""
    class_ = {"closID": "gold", "schemata": ["L3:0=f", "MB:0=20"]}
    for container_id, pid in (("c1", 41), ("c2", 42)):
        apply({**class_, "enableMonitoring": True}, container_id, pid)
    assert resctrl.tasks("gold") == ["41", "42"]
    assert [name for name, _ in resctrl.written].count("gold/schemata") == 1
    remove_rdt(str(tmp_path / "c1"))
    assert os.listdir(resctrl.root / "gold/mon_groups") == ["c2"]
    remove_rdt(str(tmp_path / "c2"))
    assert os.listdir(resctrl.root / "gold/mon_groups") == []
    assert "L3:0=f;1=fff" in resctrl.schemata("gold")


def test_a_class_that_must_be_there(resctrl: Resctrl, apply: Apply) -> None:
    with pytest.raises(ConfigError, match=r'closID: ".*/silver" does not exist'):
        apply({"closID": "silver"})
    resctrl.mkdir(str(resctrl.root / "silver"))
    apply({"closID": "silver"})
    assert resctrl.tasks("silver") == ["42"]
    assert resctrl.schemata("silver") == DEFAULT


def test_the_default_class(resctrl: Resctrl, apply: Apply, tmp_path: Path) -> None:
    apply({"closID": "/", "enableMonitoring": True})
    assert resctrl.tasks(".") == resctrl.tasks("mon_groups/c1") == ["42"]
    assert resctrl.schemata(".") == DEFAULT
    remove_rdt(str(tmp_path / "c1"))
    assert os.listdir(resctrl.root / "mon_groups") == [] and resctrl.root.exists()


@pytest.mark.parametrize(
    "lines",
    [
        ["L3:0=fff"],
        ["L3:1=0FFF;0=fff", "MB:0=100"],
        ["MB:1=91"],  # rounded up to a multiple of 10, as the kernel does it
        ["MB:0=10", "MB:0=100"],  # the last one counts
    ],
)
def test_a_class_with_the_same_schemata_is_joined_as_it_is(resctrl: Resctrl, apply: Apply, lines: list[str]) -> None:
    resctrl.mkdir(str(resctrl.root / "gold"))
    apply({"closID": "gold", "schemata": lines})
    assert resctrl.tasks("gold") == ["42"]
    assert [name for name, _ in resctrl.written] == ["gold/tasks"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"l3CacheSchema": "L3:0=f"}, "L3:0 is fff and not f"),
        ({"memBwSchema": "MB:0=100;1=20"}, "MB:1 is 100 and not 20"),
        ({"schemata": ["L3:0=fff", "L2:0=f"]}, "L2:0 is not there and not f"),
        ({"l3CacheSchema": "L3:7=f"}, "L3:7 is not there and not f"),
        ({"l3CacheSchema": "nonsense"}, '"nonsense" is not a schema'),
    ],
)
def test_a_class_with_other_schemata_is_an_error(resctrl: Resctrl, apply: Apply, fields: dict[str, Any], text: str) -> None:
    for closid in ("gold", "/"):
        if closid != "/":
            resctrl.mkdir(str(resctrl.root / closid))
        with pytest.raises(ConfigError) as raised:
            apply({"closID": closid, **fields})
        assert raised.value.where == "linux.intelRdt" and text in str(raised.value)
        assert resctrl.written == []


def test_what_a_failed_create_has_made_of_a_class(resctrl: Resctrl, apply: Apply, tmp_path: Path) -> None:
    (step,) = apply({"closID": "gold", "schemata": ["L3:0=f"]})
    (resctrl.root / "gold/tasks").write_text("42\n43\n")
    step()
    assert (resctrl.root / "gold").exists(), "another container has joined it"
    (resctrl.root / "gold/tasks").write_text("42\n")
    step()
    assert not (resctrl.root / "gold").exists()
    assert apply({"closID": "/"}) == []


def test_what_the_kernel_refuses_is_told_with_its_reason(resctrl: Resctrl, apply: Apply) -> None:
    resctrl.refused = "L3:0=0"
    with pytest.raises(GpurunError, match=r'writing "L3:0=0" to .*c1/schemata: invalid argument \(Mask out of range\)'):
        apply({"l3CacheSchema": "L3:0=0"})


def test_update(resctrl: Resctrl, apply: Apply, tmp_path: Path) -> None:
    """New schemata for a group that is there; one that is refused leaves what was; one that went away is made again."""
    root, record = str(resctrl.root), str(tmp_path / "c1")
    apply({"l3CacheSchema": "L3:0=f"})
    plan = planned({"l3CacheSchema": "L3:0=f"}, "c1", root)
    update_rdt(plan, ("L3:0=ff", "MB:0=50"), (42,), record)
    assert "L3:0=ff;1=fff" in (before := resctrl.schemata("c1"))
    resctrl.refused = "L3:0=0"
    with pytest.raises(GpurunError, match="Mask out of range"):
        update_rdt(plan, ("MB:0=20", "L3:0=0"), (42,), record)
    assert resctrl.schemata("c1") == before
    resctrl.rmdir(f"{root}/c1")
    update_rdt(plan, ("L3:0=f",), (7, 8), record)
    assert resctrl.tasks("c1") == ["7", "8"]
    remove_rdt(record)
    assert not (resctrl.root / "c1").exists()


def test_update_of_a_container_without_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "status", lambda *_: "running")
    (tmp_path / "c1").mkdir()
    store.save(str(tmp_path), store.State("c1", "/b", "/b/rootfs", "/nowhere", True))
    (tmp_path / "c1/config.json").write_text(json.dumps({"linux": {}}))
    with pytest.raises(GpurunError, match="updating a non-existent Intel RDT configuration is not supported"):
        update_container(str(tmp_path), "c1", Resources(), {"l3CacheSchema": "L3:0=f"})


def test_the_hosts_part_of_create(resctrl: Resctrl, tmp_path: Path) -> None:
    config = base()
    config["linux"]["intelRdt"] = {"closID": "gold", "schemata": ["L3:0=f"], "enableMonitoring": True}
    plan = replace(plan_of(base()), intel_rdt=planned(config["linux"]["intelRdt"], "c1", str(resctrl.root)))
    rollback = Rollback()
    lend_resctrl(plan, 42, str(tmp_path / "record"), rollback)
    assert resctrl.tasks("gold/mon_groups/c1") == ["42"]
    rollback.take_back("c1")
    assert not (resctrl.root / "gold").exists()
