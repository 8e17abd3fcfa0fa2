"""The groups of device nodes in containers made without the host's root: those that they have, by their numbers there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpurun.engine.gpus import groups as module
from gpurun.engine.gpus.groups import GroupMap, GroupRange, group_map, groups_inside
from gpurun.gpu.host import access
from gpurun.oci.config import read_config
from tests.engine.plan.planning import base

VIDEO, RENDER = 44, 992


@pytest.mark.parametrize(
    ("ranges", "settable", "inside"),
    [
        ((), True, ()),
        (((0, 1000, 1), (1, 100000, 65535)), True, ()),  # what podman's defaults are
        (((0, 1000, 1), (1, 100000, 65535), (70000, RENDER, 1)), True, (70000,)),
        (((0, 40, 10), (20, 992, 1)), True, (4, 20)),
        (((0, 40, 10), (20, 992, 1)), False, ()),
        (((0, 993, 10), (20, 991, 1)), True, ()),
        (((0, 0, 4294967295),), True, (VIDEO, RENDER)),  # 65534 is what is shown for none
    ],
)
def test_by_the_numbers_of_the_container(
    ranges: tuple[tuple[int, int, int], ...], settable: bool, inside: tuple[int, ...]
) -> None:
    known = GroupMap(tuple([GroupRange(*one) for one in ranges]), settable, False)
    assert groups_inside((VIDEO, RENDER, 65534), known, 65534) == inside


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What /proc/self says of the caller."""
    files = {"setgroups": b"allow\n", "gid_map": b"0 1000 1\n1 100000 65536\n"}
    monkeypatch.setattr(module, "read_file", lambda path, limit=0: files[path.rpartition("/")[2]])
    monkeypatch.setattr("posix.geteuid", lambda: 1000)
    return files


def made(caller: dict[str, bytes], mappings: Any = None, annotation: bool = False, gids: tuple[int, ...] = ()) -> GroupMap:
    config = base()
    if mappings is not None:
        config["linux"]["namespaces"].append({"type": "user"})
        for name in ("uidMappings", "gidMappings"):
            config["linux"][name] = [dict(zip(("containerID", "hostID", "size"), one, strict=True)) for one in mappings]
    if annotation:
        config["annotations"] = {"run.oci.keep_original_groups": "1"}
    config["process"]["user"]["additionalGids"] = list(gids)
    return group_map(read_config(json.dumps(config).encode()))


def test_a_user_with_one_id_keeps_the_groups(caller: dict[str, bytes]) -> None:
    """The kernel lets no group be set, and so none be dropped."""
    found = made(caller, [(0, 1000, 1)])
    assert (found.settable, found.keeps) == (False, True)
    assert not made(caller, [(0, 1000, 1)], gids=(5,)).keeps, "that is refused"


def test_a_range_of_the_users_own_drops_them(caller: dict[str, bytes]) -> None:
    found = made(caller, [(0, 1000, 1), (1, 100000, 65536)])
    assert (found.settable, found.keeps) == (True, False)
    assert made(caller, [(0, 1000, 1), (1, 100000, 65536)], annotation=True).keeps


def test_in_the_callers_own_namespace(caller: dict[str, bytes]) -> None:
    found = made(caller)
    assert found == GroupMap((GroupRange(0, 0, 1), GroupRange(1, 1, 65536)), True, False)
    caller["setgroups"] = b"deny\n"
    found = made(caller)
    assert (found.settable, found.keeps) == (False, True)


def test_what_such_a_container_can_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tmp_path / "renderD128"
    node.touch()
    node.chmod(0o660)
    os.chown(node, 0, RENDER)
    monkeypatch.setattr("posix.access", lambda *of, **more: False)
    assert " can (mode 0660), this user is not in it" in access.closed_nodes([str(node)])
    assert access.closed_nodes([str(node)], False, has=frozenset([RENDER])) == ""
    assert access.closed_nodes([str(node)], False, has=frozenset([VIDEO])) != ""
    node.chmod(0o640)
    assert access.closed_nodes([str(node)], False, has=frozenset([RENDER])) != "", "the group may not write it"
