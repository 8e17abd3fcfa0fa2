"""The groups of the host's device nodes, as a container can have them that is made without the host's root.

It is given the host's own nodes, which a member of their groups on the host may open.  So a group is of use to it only where
its user namespace has that group, and by the number that it has there; a group that it does not have cannot be set either
(user_namespaces(7)).  What a container then cannot open is told by :func:`gpurun.gpu.host.access.closed_nodes`.
"""

from __future__ import annotations

import posix

from gpurun.linux.files import read_file
from gpurun.linux.procfs import in_user_namespace
from gpurun.oci.annotations import CRUN_KEEP_GROUPS
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpurun.oci.config import Config

#: What the kernel shows for an id that a namespace does not have, where /proc does not say (``overflowgid``).
_OVERFLOW = 65534


class GroupRange(Record):
    """*size* groups from *outside* on, as the caller sees them, which are those from *inside* on in the container."""

    inside: int
    outside: int
    size: int


class GroupMap(Record):
    """The groups of a container: *ranges*, of which it may set some if *settable*.  *keeps*: it has the caller's as well."""

    ranges: tuple[GroupRange, ...]
    settable: bool
    keeps: bool


def group_map(config: Config) -> GroupMap:
    """The groups that a container of *config* can have, made by this process, which is not the host's root."""
    keeps = config.annotations.get(CRUN_KEEP_GROUPS) == "1"
    user = [namespace for namespace in config.linux.namespaces if namespace.type == "user"]
    if user and not user[0].path:
        ranges = tuple([GroupRange(one.container_id, one.host_id, one.size) for one in config.linux.gid_mappings])
        settable = sum([one.size for one in ranges]) > 1 or posix.geteuid() == 0
    else:
        ranges = _own_ranges()
        settable = True
    settable = settable and read_file("/proc/self/setgroups", 16).strip() != b"deny"
    return GroupMap(ranges, settable, keeps or (not settable and not config.process.user.additional_gids))


def groups_inside(gids: Iterable[int], known: GroupMap, overflow: int) -> tuple[int, ...]:
    """Those of *gids* that the container can be a member of, by their numbers there.  Pure.

    *overflow* is the number of all groups that the caller's namespace does not have.
    """
    if not known.settable:
        return ()
    found = [
        gid - one.outside + one.inside
        for gid in gids
        for one in known.ranges
        if gid != overflow and one.outside <= gid < one.outside + one.size
    ]
    return tuple(sorted({*found}))


def overflow_group() -> int:
    """The number that the caller's user namespace shows for all groups that it does not have; -1 in the host's own."""
    if not in_user_namespace():
        return -1
    try:
        return int(read_file("/proc/sys/kernel/overflowgid", 32))
    except (OSError, ValueError):
        return _OVERFLOW


def _own_ranges() -> tuple[GroupRange, ...]:
    """Those of the caller's own user namespace, which the container stays in."""
    lines = [line.split() for line in read_file("/proc/self/gid_map", 1 << 16).splitlines()]
    return tuple([GroupRange(int(inside), int(inside), int(size)) for inside, _, size in lines])
