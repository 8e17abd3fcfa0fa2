"""Which cgroup exec's process is born in, as descriptors."""

from __future__ import annotations

import posix
from errno import EINVAL, ENODEV, ENOENT, ENOSYS, EPERM

from gpurun.cgroup import control
from gpurun.errors import GpurunError, Step, StepError
from gpurun.linux.files import Fd
from gpurun.linux.fs import (
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)
from gpurun.linux.mount import MOUNT_ATTR_RDONLY
from gpurun.linux.procfs import cgroups
from gpurun.ns.birth import CANNOT_TAKE
from gpurun.ns.mount import import_stand_ins, private_copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine import state as store


def open_cgroups(state: store.State, sub: str) -> tuple[int, int]:
    """Descriptors of the cgroup that the process is to be born in, and of the one to take when that cannot be (-1: none).

    *sub*, a path below the container's cgroup, is the caller's own choice: then there is no other.  A container that has
    none (--cgroup-manager disabled, or a caller that may make none) leaves its processes in the caller's.  Returns (cgroup
    to be born in, other cgroup).  Raises :class:`StepError` when none can be opened.
    """
    if not state.cgroup and not sub:
        return -1, -1
    try:
        cgroup = posix.open(state.cgroup, control.DIRECTORY)
    except OSError as e:
        if sub or e.errno not in (ENOENT, ENODEV):
            raise StepError("open the cgroup", state.cgroup, e.errno) from None
        cgroup = -1  # removed by the container, which has a tree of its own
    if sub:
        return _open_sub_cgroup(cgroup, sub), -1
    own = _cgroup_of(state.pid)
    if cgroup >= 0 and (not own or state.cgroup.endswith(own)):
        return cgroup, -1
    if not own:
        raise StepError("open the cgroup", state.cgroup, ENOENT)
    from gpurun.cgroup.tree import find_tree, join_root

    try:
        return cgroup, posix.open(join_root(find_tree().root, own), control.DIRECTORY)
    except OSError:
        if cgroup < 0:
            raise StepError("open the cgroup", state.cgroup, ENOENT) from None
        return cgroup, -1


def move_process(cgroups: dict[str, int], name: str, pid: int, path: str) -> None:
    """Move the process *pid* into the cgroup *name* of *cgroups*, where it could not be born; *path* is the container's, for
    the error.

    As at a birth, it goes to ``other_cgroup`` where the container's own can take none.  Raises :class:`StepError`.
    """
    from gpurun.cgroup.manager import add_process  # the usual process is born there

    try:
        add_process(cgroups[name], pid, path)
    except StepError as e:
        other = cgroups.get("other_cgroup", -1)
        if name != "cgroup" or other < 0 or e.errno not in CANNOT_TAKE:
            raise
        add_process(other, pid, path)


def without_way_up(cgroup: int) -> int:
    """The open *cgroup* as a read-only mount of its own: the new process is born with it, and who in the container may look
    into that process finds no ``..`` to the host's tree, and no file to write to, which /sys/fs/cgroup does not give either.
    To be born there needs no more.  Where we may make no mounts it stays as it is.  Raises :class:`StepError`."""
    if cgroup < 0:
        return cgroup
    import_stand_ins()
    try:
        return private_copy(cgroup, "", MOUNT_ATTR_RDONLY, recursive=False)
    except OSError as e:
        if e.errno not in (EPERM, ENOSYS, EINVAL):  # EINVAL: of a mount that is unbindable
            raise StepError("copy the mount of the cgroup", "", e.errno) from None
        return cgroup


def _open_sub_cgroup(cgroup: int, sub: str) -> int:
    """The cgroup *sub* below the one that is open; the container may have written there, so no link leads anywhere."""
    path = sub.strip("/") or "."
    if ".." in path.split("/"):
        raise GpurunError(f"bad sub cgroup path: {sub}")
    resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
    with Fd(cgroup), Step("open the sub cgroup", sub):
        return openat2(cgroup, path, control.DIRECTORY, resolve)


def _cgroup_of(pid: int) -> str:
    """The cgroup of *pid*, absolute in our tree; empty when it is outside of what we see."""
    try:
        path = next((path for controllers, path in cgroups(pid) if not controllers), "")
    except OSError:
        return ""  # it has ended; joining its namespaces will say so
    return "" if path.startswith("/..") or path == "/" else path
