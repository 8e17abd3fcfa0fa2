"""What restore does at CRIU's notifications (the whole of it: tests/lifecycle/test_checkpoint*.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpurun.criu.rpc import Answer
from gpurun.engine.caller import host_resources
from gpurun.engine.caller.bundle import CreateOptions
from gpurun.engine.caller.rollback import Rollback
from gpurun.engine.checkpoint import restore, restore_stages
from gpurun.engine.checkpoint.criu_options import CriuOptions, RestoreOptions
from gpurun.engine.checkpoint.restore_stages import Stages
from gpurun.engine.state import State
from gpurun.errors import GpurunError
from tests.engine.plan.planning import base, plan


@pytest.mark.parametrize("network", ["new", "joined", "the host's"])
def test_what_the_host_lends_whatever_the_network(network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's resctrl group has nothing to do with its network namespace, which pods share."""
    done: list[tuple[Any, ...]] = []
    monkeypatch.setattr(restore_stages, "_loopback_of", lambda pid: done.append(("loopback", pid)))
    monkeypatch.setattr(host_resources, "lend_network_devices", lambda _, pid: done.append(("devices", pid)))
    monkeypatch.setattr(host_resources, "lend_resctrl", lambda _, pid, record, undo: done.append(("resctrl", pid, record)))
    config = base()
    if network != "new":
        config["linux"]["namespaces"] = [n for n in config["linux"]["namespaces"] if n["type"] != "network"]
    if network == "joined":
        config["linux"]["namespaces"].append({"type": "network", "path": "/run/netns/x"})
    options = RestoreOptions(CreateOptions("c1", str(tmp_path), "/bundle"), CriuOptions(str(tmp_path)))
    stages = Stages(options, plan(config), State("c1", "/bundle", "/bundle/rootfs", "", True), -1, Rollback())
    stages.notified(Answer(0, True, script="setup-namespaces", pid=42), ())
    expected = [("resctrl", 42, f"{tmp_path}/c1/resctrl")]
    assert done == ([("loopback", 42), ("devices", 42), *expected] if network == "new" else expected)


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_a_directory_without_a_checkpoint(kind: str, tmp_path: Path) -> None:
    """Before CRIU is looked for: what is wrong is the directory."""
    path = tmp_path / "image"
    if kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.write_text("")
    create = CreateOptions("one", str(tmp_path), str(tmp_path / "root"))
    with pytest.raises(GpurunError, match=r"image is not a checkpoint \(it has no inventory.img\): --image-path must name"):
        restore.restore(RestoreOptions(create, CriuOptions(str(path))))
