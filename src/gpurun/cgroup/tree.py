"""Where the cgroup v2 tree is, which controllers it has, and which directory of it is a container's.

The tree is /sys/fs/cgroup where that is a cgroup2 file system (a unified host).  A hybrid host keeps its cgroup2 elsewhere,
with the controllers that no v1 hierarchy holds; gpurun runs there too.  /proc/self/cgroup is not asked whether v2 is there:
it lists v1 hierarchies even in a mount namespace that has none of them.

Reference: the kernel's admin-guide/cgroup-v2.rst, proc_pid_mountinfo(5), cgroups(7).
"""

from __future__ import annotations

import posix

from gpurun.errors import ConfigError, GpurunError
from gpurun.linux.files import read_file
from gpurun.linux.fs import CGROUP2_SUPER_MAGIC, statfs_type
from gpurun.linux.mountinfo import MountEntry, mounts
from gpurun.linux.procfs import parse_cgroups
from gpurun.paths import clean_path
from gpurun.record import Record

UNIFIED_MOUNTPOINT = "/sys/fs/cgroup"

#: Controllers that a limit of config.json may need: when one of them is missing, it is looked up where v1 has it.
LIMITING_CONTROLLERS = ("cpu", "cpuset", "io", "memory", "pids", "hugetlb")


class Tree(Record):
    """A cgroup2 mount: *root* is its directory, *controllers* those of its root's ``cgroup.controllers``.

    *bound_to_v1* names the controllers (by their v2 names) that a v1 hierarchy of this host holds.  *hint* says what to do
    for a controller that is missing, where that is known better than in general.
    """

    root: str
    controllers: tuple[str, ...]
    bound_to_v1: tuple[str, ...] = ()
    hint: str = ""


def find_tree() -> Tree:
    """The cgroup v2 tree of this mount namespace.  Raises :class:`GpurunError` when there is none."""
    root = _find_root()
    controllers = tuple(read_file(f"{root}/cgroup.controllers").decode().split())
    missing = [name for name in LIMITING_CONTROLLERS if name not in controllers]
    bound = v1_controllers(_read_text("/proc/cgroups")) if missing else ()
    return Tree(root, controllers, tuple([name for name in bound if name not in controllers]))


def _find_root() -> str:
    try:
        if statfs_type(UNIFIED_MOUNTPOINT) == CGROUP2_SUPER_MAGIC:
            return UNIFIED_MOUNTPOINT
    except FileNotFoundError:
        pass  # nothing is mounted at the usual place; mountinfo knows the others
    root = cgroup2_mount(mounts())
    if root is None:
        raise GpurunError(
            "no cgroup v2 hierarchy is mounted: mount one (mount -t cgroup2 none /sys/fs/cgroup) "
            "or boot with systemd.unified_cgroup_hierarchy=1"
        )
    return root


def cgroup2_mount(mounted: list[MountEntry]) -> str | None:
    """The mount point of the first cgroup2 among *mounted* that shows the whole tree, else of the first one."""
    found = [mount for mount in mounted if mount.fstype == "cgroup2"]
    whole = [mount for mount in found if mount.root == "/"]
    return (whole or found)[0].point if found else None


def v1_controllers(proc_cgroups: str) -> tuple[str, ...]:
    """The controllers that /proc/cgroups shows bound to a v1 hierarchy (number not 0), by their v2 names."""
    rows = [line.split() for line in proc_cgroups.split("\n") if line and not line.startswith("#")]
    return tuple(["io" if row[0] == "blkio" else row[0] for row in rows if len(row) > 1 and row[1] != "0"])


def own_cgroup() -> str:
    """The cgroup v2 path of this process, absolute from the root of the tree (or of its cgroup namespace)."""
    return cgroup_of("self")


def cgroup_of(pid: int | str) -> str:
    """The cgroup v2 path of the process *pid*, as :func:`own_cgroup`; ``/`` when there is no such process."""
    return parse_own_cgroup(_read_text(f"/proc/{pid}/cgroup"))


def parse_own_cgroup(proc_cgroup: str) -> str:
    """The path of the ``0::`` line of a /proc/pid/cgroup; ``/`` when there is none."""
    for controllers, path in parse_cgroups(proc_cgroup):
        if not controllers:
            return path.removesuffix(" (deleted)") or "/"
    return "/"


def cgroup_path(tree: Tree, cgroups_path: str, container_id: str, own: str) -> str:
    """The directory of a container's cgroup, for the cgroupfs driver.

    *cgroups_path* is ``linux.cgroupsPath``: absolute from the root of the tree, or relative to the parent of *own* (the
    cgroup of this process, see :func:`own_cgroup`; it holds a process, so it cannot give controllers to a child), or
    empty, which means the container's id.  It is untrusted: ``..`` never climbs over where it starts.

    Raises :class:`ConfigError` when it names no cgroup of its own, or one that the kernel cannot make.
    """
    named = clean_path(cgroups_path or container_id)
    if named == "/":
        raise ConfigError(
            "linux.cgroupsPath", f'"{cgroups_path}" is the root of the tree: it must name a cgroup for this container only'
        )
    if "\n" in named:
        raise ConfigError("linux.cgroupsPath", "contains a newline, which cgroup names cannot have")
    if cgroups_path.startswith("/"):
        return join_root(tree.root, named)
    parent = clean_path(own).rpartition("/")[0]
    return join_root(tree.root, parent + named)


def slice_of_unit(own: str) -> str:
    """The name of systemd's slice in which *own* is a scope or a service; "" where it is not that.

    Such a slice belongs to systemd: it takes a controller away when none of its own units needs it (its
    CGROUP_DELEGATION.md), and with it the limits of cgroups that others have made there.
    """
    parent, _, name = own.rpartition("/")
    above = parent.rpartition("/")[2]
    return above if above.endswith(".slice") and name.endswith((".scope", ".service")) else ""


def join_root(root: str, path: str) -> str:
    """*path* (absolute in the tree) below the directory *root*."""
    return root.rstrip("/") + path


def hugepage_sizes(directory: str = "/sys/kernel/mm/hugepages") -> tuple[str, ...]:
    """The huge page sizes of this kernel as its cgroup files name them (``2MB``, ``1GB``); none without hugetlbfs."""
    try:
        names = posix.listdir(directory)
    except FileNotFoundError:
        return ()
    return tuple([hugepage_name(int(name[10:-2])) for name in sorted(names)])  # hugepages-2048kB


def dmem_capacity(root: str) -> str:
    """The regions of GPU memory that the dmem controller of the tree at *root* counts: a line for each, its name and bytes;
    "" where the kernel has no such controller."""
    return _read_text(f"{root}/dmem.capacity")


def numa_nodes(directory: str = "/sys/devices/system/node") -> tuple[tuple[int, str], ...]:
    """The NUMA nodes of this host that have memory or CPUs: (number, its CPUs as the kernel lists them)."""
    try:
        names = posix.listdir(directory)
    except FileNotFoundError:
        return ()  # a kernel without NUMA
    numbers = sorted([int(name[4:]) for name in names if name.startswith("node") and name[4:].isdigit()])
    return tuple([(n, _read_text(f"{directory}/node{n}/cpulist").strip()) for n in numbers])


def hugepage_name(kib: int) -> str:
    """How hugetlb's files call a page of *kib* KiB."""
    if kib >= 1 << 20:
        return f"{kib >> 20}GB"
    return f"{kib >> 10}MB" if kib >= 1 << 10 else f"{kib}KB"


def _read_text(path: str) -> str:
    try:
        data = read_file(path)
    except FileNotFoundError:
        return ""  # a kernel built without cgroup v1 may have no /proc/cgroups
    return data.decode("utf-8", "surrogateescape")
