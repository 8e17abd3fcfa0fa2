"""Which namespaces are made and which joined, and what contradicts itself."""

from __future__ import annotations

import pytest

from gpurun.errors import ConfigError
from gpurun.linux.process import CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID
from gpurun.ns.namespaces import Join, host_id, map_lines, plan_namespaces
from gpurun.oci.config import IdMapping, Linux, Namespace, TimeOffset

MAPS = (IdMapping(0, 1000, 10),)


def linux(*namespaces: str, uid: tuple[IdMapping, ...] = (), gid: tuple[IdMapping, ...] = (), time: str = "") -> Linux:
    """Each of *namespaces* is ``type`` or ``type:path``."""
    listed = tuple([Namespace(*text.partition(":")[::2]) for text in namespaces])
    offsets = (TimeOffset(time, 7, 8),) if time else ()
    return Linux(namespaces=listed, uid_mappings=uid, gid_mappings=gid, time_offsets=offsets)


def test_new_and_joined() -> None:
    made = plan_namespaces(linux("pid", "time:/t", "network:/n", "mount"))
    assert made.new == CLONE_NEWPID | CLONE_NEWNS
    assert [join.type for join in made.joins] == ["network", "time"], "in the order in which they are joined"
    assert made.joins[0] == Join("network", CLONE_NEWNET, "/n")
    assert made.has(CLONE_NEWNET) and made.has(CLONE_NEWPID) and not made.has(CLONE_NEWIPC)
    assert (made.uids, made.gids, made.uid_map, made.time_offsets) == ("", "", "", "")


def test_a_new_user_namespace() -> None:
    made = plan_namespaces(linux("user", uid=MAPS, gid=(IdMapping(0, 5, 1),)))
    assert (made.uid_map, made.gid_map) == (made.uids, made.gids) == ("0 1000 10\n", "0 5 1\n")


def test_a_joined_user_namespace() -> None:
    """Its own maps are in force, and not written again."""
    real = ("0 1000 10\n", "0 5 1\n")
    made = plan_namespaces(linux("user:/u"), real)
    assert (made.uids, made.gids, made.uid_map, made.gid_map) == (*real, "", "")
    assert plan_namespaces(linux("user:/u", uid=MAPS, gid=(IdMapping(0, 5, 1),)), real) == made
    with pytest.raises(ConfigError, match=r"linux\.gidMappings: differs from the map of the joined user namespace"):
        plan_namespaces(linux("user:/u", gid=MAPS), real)


def test_offsets_of_a_new_time_namespace() -> None:
    assert plan_namespaces(linux("time", time="boottime")).time_offsets == "boottime 7 8\n"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (linux("pid", "quux"), 'linux.namespaces[1].type: namespace "quux" does not exist'),
        (linux("pid", "pid"), "linux.namespaces[1]: malformed spec file: duplicated ns pid"),
        (linux("pid:/p", "pid"), "duplicated ns pid"),
        (linux("pid", "pid:/p"), "duplicated ns pid"),
        (linux("ipc:rel"), 'linux.namespaces[0].path: "rel" must be an absolute path'),
        (linux(uid=MAPS), "linux.uidMappings: user namespace mappings specified, but user namespace isn't enabled"),
        (linux(gid=MAPS), "linux.gidMappings: user namespace mappings specified"),
        (linux("user"), "linux.uidMappings: user namespaces enabled, but no namespace path to join nor mappings"),
        (linux("user", uid=MAPS), "linux.gidMappings: is missing"),
        (linux("user", gid=MAPS), "linux.uidMappings: is missing"),
        (linux("user", uid=(IdMapping(1, 1000, 10),), gid=MAPS), "linux.uidMappings: must map the container's id 0"),
        (linux("user", uid=MAPS, gid=(IdMapping(0, 1, 0),)), "linux.gidMappings[0].size: must not be 0"),
        (linux(time="boottime"), "linux.timeOffsets: time offsets need a new time namespace: add one"),
        (linux("time:/t", time="boottime"), "time offsets need a new time namespace: a joined one has its own"),
        (linux("time", time="realtime"), "linux.timeOffsets.realtime: is not a clock of a time namespace"),
    ],
)
def test_refused(config: Linux, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_namespaces(config)
    assert text in str(refused.value)


def test_the_last_id() -> None:
    assert map_lines((IdMapping(0, (1 << 32) - 1, 1),), "w") == f"0 {(1 << 32) - 1} 1\n"
    for mapping in (IdMapping(0, (1 << 32) - 1, 2), IdMapping((1 << 32) - 1, 0, 2)):
        with pytest.raises(ConfigError, match=r"w\[0\]: reaches beyond the last id"):
            map_lines((mapping,), "w")


@pytest.mark.parametrize(("inside", "outside"), [(0, 1000), (9, 1009), (10, -1), (20, 5), (21, -1)])
def test_ids_of_the_host(inside: int, outside: int) -> None:
    assert host_id("0 1000 10\n20 5 1\n", inside) == outside


@pytest.mark.parametrize(
    ("config", "helper"),
    [
        (linux("pid", "mount"), False),
        (linux("mount:/m"), False),
        (linux("network:/n"), False),
        (linux("pid:/p"), True),
        (linux("time"), True),
        (linux("user:/u"), True),
        (linux("user", "network:/n", uid=MAPS, gid=MAPS), True),
        (linux("user", "mount:/m", uid=MAPS, gid=MAPS), False),
    ],
)
def test_who_is_cloned_from_inside(config: Linux, helper: bool) -> None:
    assert plan_namespaces(config).needs_helper is helper
