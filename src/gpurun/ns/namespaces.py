"""Which namespaces to make and which to join, and the id maps; pure (``linux.namespaces``, user_namespaces(7))."""

from __future__ import annotations

from gpurun.errors import ConfigError
from gpurun.linux.process import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWTIME,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
)
from gpurun.oci.config import IdMapping, Linux
from gpurun.record import Record

#: OCI name → (CLONE_NEW* flag, name in /proc/PID/ns), in the order in which namespaces are joined.
NAMESPACES: dict[str, tuple[int, str]] = {
    "user": (CLONE_NEWUSER, "user"),
    "ipc": (CLONE_NEWIPC, "ipc"),
    "uts": (CLONE_NEWUTS, "uts"),
    "network": (CLONE_NEWNET, "net"),
    "pid": (CLONE_NEWPID, "pid"),
    "mount": (CLONE_NEWNS, "mnt"),
    "cgroup": (CLONE_NEWCGROUP, "cgroup"),
    "time": (CLONE_NEWTIME, "time"),
}


class Join(Record):
    """A namespace to enter: its CLONE_NEW* flag and the file that names it."""

    type: str
    flag: int
    path: str


class NamespacePlan(Record):
    """*new*: CLONE_NEW* flags to make; *joins*: what to enter instead.  Maps and offsets are the lines the kernel takes."""

    new: int
    joins: tuple[Join, ...] = ()
    uid_map: str = ""
    gid_map: str = ""
    time_offsets: str = ""
    uids: str = ""  # the maps in force, of a new user namespace or a joined one; empty without one
    gids: str = ""

    def has(self, flag: int) -> bool:
        """Whether the container is in another namespace of that kind than the runtime."""
        return bool(self.new & flag) or any(j.flag == flag for j in self.joins)

    @property
    def needs_helper(self) -> bool:
        """Whether the init must be cloned from inside a joined (or already made) namespace: see ns/spawn.py.

        Root of a new user namespace may join none that was there before, so these are joined first.
        """
        joined = [join.flag for join in self.joins if join.flag != CLONE_NEWNS]  # that one the init joins by itself
        if self.new & CLONE_NEWUSER and joined:
            return True
        return bool(self.new & CLONE_NEWTIME) or CLONE_NEWUSER in joined or CLONE_NEWPID in joined


def plan_namespaces(linux: Linux, joined_maps: tuple[str, str] | None = None) -> NamespacePlan:
    """The namespaces of *linux*; raises :class:`ConfigError` for what contradicts itself.

    *joined_maps* are the uid and gid map of the user namespace that is joined, if one is.
    """
    new, joins = _new_and_joined(linux)
    is_new_user = bool(new & CLONE_NEWUSER)
    _check_mappings(linux, is_new_user, is_new_user or "user" in joins)
    uids, gids = _maps(linux, joined_maps)
    return NamespacePlan(
        new=new,
        joins=tuple([joins[kind] for kind in NAMESPACES if kind in joins]),
        uid_map=uids if is_new_user else "",
        gid_map=gids if is_new_user else "",
        time_offsets=_time_offsets(linux, bool(new & CLONE_NEWTIME), "time" in joins),
        uids=uids,
        gids=gids,
    )


def _new_and_joined(linux: Linux) -> tuple[int, dict[str, Join]]:
    """(CLONE_NEW* flags of those to make, kind → the one to join)."""
    new = 0
    joins: dict[str, Join] = {}
    for i, namespace in enumerate(linux.namespaces):
        where, kind = f"linux.namespaces[{i}]", namespace.type
        if kind not in NAMESPACES:
            raise ConfigError(f"{where}.type", f'namespace "{kind}" does not exist')
        flag = NAMESPACES[kind][0]
        if new & flag or kind in joins:
            raise ConfigError(where, f"malformed spec file: duplicated ns {kind}")
        if not namespace.path:
            new |= flag
        elif not namespace.path.startswith("/"):
            raise ConfigError(f"{where}.path", f'"{namespace.path}" must be an absolute path')
        else:
            joins[kind] = Join(kind, flag, namespace.path)
    return new, joins


def _check_mappings(linux: Linux, is_new: bool, has_user: bool) -> None:
    """Mappings are for a container that *has_user* namespace, and one that *is_new* needs both."""
    uid, gid = linux.uid_mappings, linux.gid_mappings
    if (uid or gid) and not has_user:
        raise ConfigError(
            "linux.uidMappings" if uid else "linux.gidMappings",
            "user namespace mappings specified, but user namespace isn't enabled in the config",
        )
    if is_new and not uid and not gid:  # the identity would be a container whose root is the host's
        raise ConfigError(
            "linux.uidMappings",
            "user namespaces enabled, but no namespace path to join nor mappings to apply specified: "
            "add uidMappings and gidMappings, or a path to the namespace",
        )
    if is_new and bool(uid) != bool(gid):
        missing = "gidMappings" if uid else "uidMappings"
        raise ConfigError(f"linux.{missing}", "is missing: a user namespace needs both uidMappings and gidMappings")


def _maps(linux: Linux, joined: tuple[str, str] | None) -> tuple[str, str]:
    """(uid map, gid map) in force: those of *linux*, or of the user namespace that is *joined*, and empty without either."""
    found = []
    for i, name in enumerate(("uidMappings", "gidMappings")):
        where = f"linux.{name}"
        lines = map_lines(linux.gid_mappings if i else linux.uid_mappings, where)
        if joined is not None:
            _check_same(lines, joined[i], where)
            lines = joined[i]
        if lines and host_id(lines, 0) < 0:
            raise ConfigError(where, "must map the container's id 0: gpurun sets the container up as its root")
        found.append(lines)
    return found[0], found[1]


def _time_offsets(linux: Linux, is_new: bool, is_joined: bool) -> str:
    """The lines for /proc/PID/timens_offsets; they are for a time namespace that *is_new*."""
    if linux.time_offsets and not is_new:
        what = "a joined one has its own" if is_joined else "add one to linux.namespaces"
        raise ConfigError("linux.timeOffsets", f"time offsets need a new time namespace: {what}")
    lines = []
    for offset in linux.time_offsets:
        if offset.clock not in ("monotonic", "boottime"):
            where = f"linux.timeOffsets.{offset.clock}"
            raise ConfigError(where, "is not a clock of a time namespace, use monotonic or boottime")
        lines.append(f"{offset.clock} {offset.secs} {offset.nanosecs}\n")
    return "".join(lines)


def host_id(map_lines: str, container_id: int) -> int:
    """The host's id for *container_id* by the lines of an id map; -1 when it is not mapped."""
    for line in map_lines.splitlines():
        inside, outside, count = [int(word) for word in line.split()]
        if inside <= container_id < inside + count:
            return outside + container_id - inside
    return -1


def _check_same(given: str, real: str, where: str) -> None:
    """Callers that give the path of a user namespace may give its maps too, but no others."""
    from gpurun.ns.idmap import same_map

    if given and not same_map(given, real):
        lines = ", ".join(real.splitlines())
        raise ConfigError(where, f"differs from the map of the joined user namespace ({lines}): give the same or none")


def map_lines(mappings: tuple[IdMapping, ...], where: str) -> str:
    """*mappings* as the lines that the kernel takes; raises :class:`ConfigError` for those it cannot take."""
    for i, mapping in enumerate(mappings):
        if mapping.size == 0:
            raise ConfigError(f"{where}[{i}].size", "must not be 0")
        if max(mapping.container_id, mapping.host_id) + mapping.size > 1 << 32:
            raise ConfigError(f"{where}[{i}]", "reaches beyond the last id, 4294967295")
    return "".join([f"{m.container_id} {m.host_id} {m.size}\n" for m in mappings])
