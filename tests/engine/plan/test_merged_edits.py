"""What device edits change in a config, and the configs in which they would change the host: those are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpurun.cdi.edits import CacheEntry, ContainerEdits, EditMount, ProcTree
from gpurun.engine.plan.merged_edits import merge_into_config
from gpurun.errors import ConfigError
from gpurun.oci.config import Config, read_config
from gpurun.record import replace
from tests.native.bundle import base_config

CACHE = ContainerEdits(ldcache=(CacheEntry("liba.so.1", "/usr/lib/liba.so.1", 3),))
FILE = ContainerEdits(mounts=(EditMount("/usr/lib/liba.so.1", "/usr/lib/liba.so.1", ()),))
TREE = ContainerEdits(proc_trees=(ProcTree("/etc/nvidia/profiles", (), ()),))
PROC = ContainerEdits(proc_trees=(ProcTree("/proc/driver/nvidia", (), ()),))


def config(propagation: str, *volumes: tuple[str, str]) -> Config:
    document: dict[str, Any] = base_config()
    document["linux"]["rootfsPropagation"] = propagation
    for destination, option in volumes:
        options = ["rbind", option] if option else ["rbind"]
        document["mounts"].append({"destination": destination, "type": "bind", "source": "/srv", "options": options})
    return read_config(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("propagation", "option"),
    [(root, option) for root in ("rshared", "shared") for option in ("rshared", "shared", "")]
    + [("slave", "rshared"), ("private", "shared"), ("unbindable", "rshared")],
)
@pytest.mark.parametrize(
    ("edits", "volume", "path"),
    [
        (FILE, "/usr", "/usr/lib/liba.so.1"),
        (FILE, "/usr/lib/", "/usr/lib/liba.so.1"),
        (CACHE, "/etc", "/etc/ld.so.cache"),
        (TREE, "/etc/nvidia", "/etc/nvidia/profiles"),
    ],
)
def test_nothing_is_mounted_on_what_the_host_shares(
    propagation: str, option: str, edits: ContainerEdits, volume: str, path: str
) -> None:
    place = r"mounts\[6\].options: shares what is mounted in it with the host, and " + path
    with pytest.raises(ConfigError, match=place):
        merge_into_config(config(propagation, (volume, option)), edits)


@pytest.mark.parametrize(
    ("propagation", "volumes", "edits"),
    [
        ("rslave", [("/usr", "rshared")], FILE),
        ("", [("/etc", "rshared")], CACHE),
        ("rprivate", [("/etc", "rshared")], CACHE),
        ("private", [("/etc", "")], CACHE),
        ("rshared", [("/usr", "rslave"), ("/etc", "")], FILE),
        ("rshared", [("/us", "rshared"), ("/usr/lib64", "rshared"), ("/usr/lib/liba.so", "rshared")], FILE),
        ("rshared", [("/usr", "rshared"), ("/usr/lib", "rprivate")], FILE),
        ("rshared", [("/usr/lib/liba.so.1", "rshared")], FILE),  # which ours replaces
        ("rshared", [("/proc", "rshared")], PROC),  # made a slave before
        ("rshared", [("/etc", "rshared")], FILE),
    ],
)
def test_what_stays_in_the_container(propagation: str, volumes: list[tuple[str, str]], edits: ContainerEdits) -> None:
    before = config(propagation, *volumes)
    after, left = merge_into_config(before, edits)
    assert left == edits and after.linux == before.linux


def test_what_only_helps_on_a_shared_sys_is_left_out_with_a_warning() -> None:
    place = "/sys/devices/virtual/kfd/kfd/topology"
    edits = replace(TREE, proc_trees=(ProcTree(place, (), ()), *TREE.proc_trees), warnings=("first",))
    left = merge_into_config(config("rshared", ("/sys", "rshared")), edits)[1]
    assert left.proc_trees == TREE.proc_trees and left.warnings[0] == "first"
    assert left.warnings[1].startswith(f"{place} shows the GPUs of all: mounts[6].options: shares what is mounted in it")
    assert merge_into_config(config("rshared", ("/sys", "rslave")), edits)[1] == edits


@pytest.mark.parametrize(("volume", "source"), [("/", "/"), ("/usr", "/usr"), ("/usr/lib/", "/usr/lib")])
def test_a_file_that_the_volume_shows_already(volume: str, source: str) -> None:
    """As /run of the host at /run has its services' sockets: nothing is mounted, and nothing is missing."""
    document: dict[str, Any] = base_config()
    document["linux"]["rootfsPropagation"] = "rshared"
    document["mounts"].append({"destination": volume, "type": "bind", "source": source, "options": ["rbind", "rshared"]})
    before = read_config(json.dumps(document).encode())
    assert merge_into_config(before, FILE)[1] == ContainerEdits()
    other = replace(FILE, mounts=(replace(FILE.mounts[0], host_path="/opt/liba.so.1"),))
    with pytest.raises(ConfigError, match="shares what is mounted in it"):
        merge_into_config(before, other)
