"""Containers that have GPUs, of any engine and however they got them: by the numbers of the nodes in their /dev.

Each mount namespace with its own /dev is looked at once.  One with the host's /dev (a service of systemd, an agent that
has all of it) does not count as a container.  A container with GPUs but neither /dev/nvidia-uvm nor /dev/dri can monitor
them and not compute: it does not count either.  A container has no GPUs only if its whole /dev could be read: an error
(such as no descriptors left) is raised, and where names come and go meanwhile, the directory is read again.  A container
that can make device nodes can look as if it had GPUs, which gives it none.  One that renames its nodes still has its GPUs:
its device program says so (:mod:`gpurun.gpu.leases.grants`).
"""

from __future__ import annotations

import posix
from _stat import S_ISCHR, S_ISLNK
from errno import ELOOP, ENOENT, ENOTDIR, ESRCH

from gpurun.errors import Step, StepError
from gpurun.gpu.vendors import VENDORS
from gpurun.linux.files import O_CLOEXEC, Fd, read_file
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.linux.procfs import cgroups
from gpurun.ns.path import UNUSABLE, open_in_root, path_in_root
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: The process has ended, or it has no such directory, or we may not see it.
_GONE = (*UNUSABLE, ESRCH)
#: The container has no such directory.
_NO_DIRECTORY = (ENOENT, ENOTDIR, ELOOP)
#: How often a directory is listed in which names go away meanwhile.
_LOOKS = 8
_PREFIXES = tuple(dict.fromkeys([pair for vendor in VENDORS for pair in vendor.nodes]))
_COMPUTE = frozenset([name for vendor in VENDORS for name in vendor.compute])


class Seen(Record):
    """A container: *pid* is its first process, *namespace* the inode of its mount namespace.

    *devices* are the (major, minor) of the character devices in its /dev.
    """

    pid: int
    namespace: int
    devices: frozenset[tuple[int, int]]


def containers_with_nodes(may_open: Callable[[int], frozenset[tuple[int, int]]] | None = None) -> tuple[Seen, ...]:
    """All that this process may see; *may_open* says which devices a process may open, whatever names they have by now."""
    host = _host_dev()
    known = {mount_namespace("self"), mount_namespace("1"), 0}
    found = []
    for pid in sorted([int(name) for name in posix.listdir("/proc") if name.isdigit()]):
        namespace = mount_namespace(str(pid))
        if namespace in known:
            continue
        known.add(namespace)
        devices = nodes_of(pid, host)
        if may_open is not None and _has_own_dev(pid, host):
            devices |= may_open(pid)
        if devices:
            found.append(Seen(pid, namespace, devices))
    return tuple(found)


def mount_namespace(pid: str) -> int:
    """The inode of the mount namespace of the process *pid*; 0 where it has ended or is not ours to see.

    Raises :class:`StepError`.
    """
    try:
        return posix.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError as e:
        if e.errno in _GONE:
            return 0
        raise StepError("see the mount namespace of the process", pid, e.errno) from None


def _host_dev() -> int:
    try:
        return posix.stat("/proc/1/root/dev").st_dev
    except OSError:
        return posix.stat("/dev").st_dev


def _has_own_dev(pid: int, host_dev: int) -> bool:
    """Whether /dev of the process *pid* is not the host's; one that it has removed is not."""
    try:
        root_fd = posix.open(f"/proc/{pid}/root", O_PATH | O_DIRECTORY | O_CLOEXEC)
        with Fd(root_fd), Fd(open_in_root(root_fd, "/dev", O_PATH | O_DIRECTORY | O_CLOEXEC)) as fd:
            return posix.fstat(fd).st_dev != host_dev
    except OSError:
        return True


def nodes_of(pid: int, host_dev: int = -1, computes: bool = False, by_name: bool = False) -> frozenset[tuple[int, int]]:
    """(major, minor) of the nodes in the /dev of the process *pid*, the driver's among them; none where it is the host's.

    None either, unless *computes*, where they cannot compute.  *by_name*: only those that have a name of the driver's.

    Its file system is hostile: nothing leads out of it.  Raises :class:`StepError` where it cannot be seen what is there.
    """
    try:
        return _nodes_of(pid, host_dev, computes, by_name)
    except OSError as e:
        if e.errno in _GONE:
            return frozenset()
        raise StepError("see which GPUs the process has in its /dev:", str(pid), e.errno) from None


def _nodes_of(pid: int, host_dev: int, computes: bool, by_name: bool) -> frozenset[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    with Fd(posix.open(f"/proc/{pid}/root", O_PATH | O_DIRECTORY | O_CLOEXEC)) as root_fd:
        for directory, prefix in _PREFIXES:
            try:
                opened = open_in_root(root_fd, directory, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
            except OSError as e:
                if e.errno in _GONE:
                    continue
                raise
            with Fd(opened) as fd:
                if posix.fstat(fd).st_dev == host_dev:
                    return frozenset()
                for _ in range(_LOOKS):
                    names, whole = posix.listdir(fd), True
                    computes = computes or not _COMPUTE.isdisjoint(names)
                    for name in names:
                        if by_name and not name.startswith(prefix):
                            continue
                        try:
                            node = posix.stat(name, dir_fd=fd, follow_symlinks=False)
                        except FileNotFoundError:
                            whole = False  # it may have another name by now
                            continue
                        if S_ISCHR(node.st_mode):
                            found.add((posix.major(node.st_rdev), posix.minor(node.st_rdev)))
                    if whole:
                        break
    return frozenset(found) if computes else frozenset()


def has_node(pid: int, path: str, number: tuple[int, int]) -> bool:
    """Whether *path* of the process *pid* is the character device *number*; not where it is gone or cannot be seen."""
    try:
        root_fd = posix.open(f"/proc/{pid}/root", O_PATH | O_DIRECTORY | O_CLOEXEC)
        with Fd(root_fd), Fd(open_in_root(root_fd, path, O_PATH | O_CLOEXEC)) as fd:
            found = posix.fstat(fd)
    except OSError:
        return False
    return S_ISCHR(found.st_mode) and (posix.major(found.st_rdev), posix.minor(found.st_rdev)) == number


def node_paths(root_fd: int) -> tuple[str, ...]:
    """The paths of the driver's nodes, and of links beside them, below the root *root_fd*; none of the host's /dev.

    Raises :class:`StepError` for a directory that is there and cannot be looked at.
    """
    found: list[str] = []
    host_dev = posix.stat("/dev").st_dev
    for directory, prefix in (
        *_PREFIXES,
        *[pair for vendor in VENDORS for pair in vendor.channels],
        ("/dev/dri", ""),
        ("/dev/dri/by-path", ""),
    ):
        try:
            fd = open_in_root(root_fd, directory, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        except OSError as e:
            if e.errno in _NO_DIRECTORY:
                continue
            raise StepError("look for GPUs in the container's", directory, e.errno) from None
        with Fd(fd), Step("look for GPUs in the container's", directory):
            if posix.fstat(fd).st_dev == host_dev or path_in_root(root_fd, fd, "").strip("/") != directory.strip("/"):
                continue
            for name in sorted(posix.listdir(fd)):
                try:
                    mode = posix.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
                except FileNotFoundError:
                    continue  # it has gone
                if name.startswith(prefix) and (S_ISCHR(mode) or S_ISLNK(mode)):
                    found.append(f"{directory}/{name}")
    return tuple(dict.fromkeys(found))


def cgroup_of(pid: int) -> str:
    """The cgroup of the process *pid*, as this process sees the tree; empty when it is gone.  Raises :class:`StepError`."""
    try:
        found = cgroups(pid)
    except OSError as e:
        if e.errno in _GONE:
            return ""
        raise StepError("read the cgroup of the process", str(pid), e.errno) from None
    unified = next((path for controllers, path in found if not controllers), "/")
    # On a host with cgroup v1 other runtimes' containers are in the hierarchies of the controllers.
    return unified if unified != "/" else max([path for _, path in found], key=len, default="")


def command_of(pid: int) -> str:
    """The name of the program of *pid*; empty when it is gone."""
    try:
        return read_file(f"/proc/{pid}/comm", 64).decode("utf-8", "replace").strip()
    except OSError:
        return ""
