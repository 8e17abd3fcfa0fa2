"""What create tells the waiting starter ahead of the plan: that devices are to come, and which."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.edits import ContainerEdits, EditMount
from gpurun.engine import messages
from gpurun.engine.caller.bundle import CreateOptions, plan_bundle
from gpurun.engine.caller.start_init import Started, tell
from gpurun.engine.plan.container import Plan, make_plan
from gpurun.oci.config import read_config
from gpurun.oci.default_spec import default_spec
from tests.engine.plan.planning import HOST, base


def told(tmp_path: Path, env: list[str]) -> tuple[object, ...] | None:
    spec = default_spec()
    spec["process"]["env"] += env
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(spec))
    ours, its = socket.socketpair()
    with ours, its:
        plan_bundle(CreateOptions("c", str(tmp_path / "root"), str(tmp_path)), started=Started(0, ours.fileno()))
        ours.shutdown(socket.SHUT_WR)
        return messages.receive(its.fileno())


@pytest.mark.parametrize(("env", "message"), [([], None), (["NVIDIA_VISIBLE_DEVICES=void"], ("devices",))])
def test_the_starter_is_told(tmp_path: Path, env: list[str], message: tuple[str] | None) -> None:
    assert told(tmp_path, env) == message


def test_a_starter_that_has_ended_is_another_step_s_error(tmp_path: Path) -> None:
    ours, its = socket.socketpair()
    its.close()
    with ours:
        tell(Started(0, ours.fileno()), "devices")


def edits(*mounts: str) -> ContainerEdits:
    return ContainerEdits(mounts=tuple(EditMount(path, path, ("ro",)) for path in mounts))


def with_edits(config: dict[str, Any], made: ContainerEdits) -> Plan:
    return make_plan(read_config(json.dumps(config).encode()), "c", "/bundle", HOST, made)


def test_edits_come_before_the_plan_only_where_the_host_s_mounts_are_the_init_s() -> None:
    config = base()
    assert with_edits(config, edits("/a")).edits_come_first
    assert not with_edits(config, edits()).edits_come_first
    assert not with_edits(config, ContainerEdits(env=("A=b",))).edits_come_first
    joined = base()
    for namespace in joined["linux"]["namespaces"]:
        if namespace["type"] == "mount":
            namespace["path"] = "/proc/1/ns/mnt"
    assert not with_edits(joined, edits("/a")).edits_come_first
    inside = base()
    inside["linux"]["namespaces"].append({"type": "user"})
    inside["linux"]["uidMappings"] = inside["linux"]["gidMappings"] = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    assert not with_edits(inside, edits("/a")).edits_come_first
