"""The rootfs that edits are put into: how to reach it, and how room is made where it is read-only and lacks a name.

An image on a file system that cannot be written (a read-only snapshot, erofs, squashfs) has no place for mount points
that it was not built with.  Each directory that lacks one is covered by an overlay: the image's directory below, a private
tmpfs above, read-only like the image once all is in place.  Mounts that lie below such a directory are put back on top.
"""

from __future__ import annotations

import posix
from errno import EROFS

from gpurun.errors import GpurunError, StepError, oserror_text
from gpurun.linux import mount as lm
from gpurun.linux.files import read_fd
from gpurun.linux.fs import CGROUP2_SUPER_MAGIC, PROC_SUPER_MAGIC, SYSFS_MAGIC, fstatfs_type
from gpurun.ns.mount import attach, filesystem, tmpfs
from gpurun.ns.path import existing_part, open_in_root
from gpurun.ns.places import Places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from gpurun.ns.journal import Journal

    T = TypeVar("T")

_KERNELS_OWN = (PROC_SUPER_MAGIC, SYSFS_MAGIC, CGROUP2_SUPER_MAGIC)
_PRIVATE = lm.MOUNT_ATTR_NOSUID | lm.MOUNT_ATTR_NODEV


def refuse_kernels_own(fd: int, path: str) -> None:
    """Raise :class:`GpurunError` where *path* is none of /proc or /sys and *fd*, to which it was resolved, is there.

    What is bound there would hide a file that this runtime or the container's processes trust.
    """
    if fstatfs_type(fd) in _KERNELS_OWN and not path.startswith(("/proc/", "/sys/")):
        raise GpurunError(f"{path}: a link of the image leads into /proc or /sys, and nothing is put there")


class Target:
    """A rootfs by its descriptor, in the container's mount namespace.

    *readonly*: it is going to be read-only (``root.readonly``), so nothing need be written into it.  *in_user_namespace*:
    mknod(2) is not allowed.
    """

    def __init__(self, root_fd: int, journal: Journal, in_user_namespace: bool = False, readonly: bool = False) -> None:
        self.root_fd = root_fd
        self.journal = journal
        self.in_user_namespace = in_user_namespace
        self.readonly = readonly
        self.places = Places(root_fd, journal, refuse_kernels_own)
        self._covers: list[int] = []

    def with_room(self, path: str, action: Callable[[], T]) -> T:
        """The result of *action*, which makes something at *path*; room is made for it if the rootfs is read-only."""
        try:
            return action()
        except (OSError, StepError) as e:
            if e.errno != EROFS:
                raise
        self._make_room(path)
        return action()

    def finish(self) -> None:
        """Make read-only what was made of room, and let go of all descriptors."""
        self.places.close()
        for fd in self._covers:
            lm.mount_setattr(fd, lm.MOUNT_ATTR_RDONLY)
            posix.close(fd)
        self._covers.clear()

    def _make_room(self, path: str) -> None:
        self.places.renew()
        fd, where, missing = existing_part(self.root_fd, path)
        try:
            if not where:
                raise GpurunError(f"the rootfs is read-only and has no /{missing}, which {path} needs: make one in it")
            try:
                below = self._mounts_below(where)
                cover = _overlay(self.root_fd, fd)
                attach(cover, fd)
                self._covers.append(cover)
                for name, tree in below:
                    place = open_in_root(self.root_fd, name)
                    attach(tree, place)
                    posix.close(place)
                    posix.close(tree)
            except OSError as e:
                why = f"an overlay over /{where} cannot be made: {oserror_text(e)}"
                raise GpurunError(f"the rootfs is read-only and has no place for {path}: {why}") from None
        finally:
            posix.close(fd)

    def _mounts_below(self, where: str) -> list[tuple[str, int]]:
        """(path in the rootfs, detached copy) of each mount somewhere below the directory *where*."""
        root = posix.readlink(f"/proc/self/fd/{self.root_fd}").rstrip("/")
        fd = posix.open("/proc/self/mountinfo", posix.O_RDONLY | posix.O_CLOEXEC)
        lines = read_fd(fd, 64 << 20).decode("utf-8", "surrogateescape").splitlines()
        posix.close(fd)
        prefix = f"{root}/{where}/"
        points = sorted({p for line in lines if (p := _unescaped(line.split(" ", 5)[4])).startswith(prefix)})
        outermost = [p for p in points if not any(p.startswith(other + "/") for other in points)]
        names = [p.removeprefix(root + "/") for p in outermost]
        found = []
        for name in names:
            place = open_in_root(self.root_fd, name)
            found.append((name, lm.open_tree(place, "", lm.OPEN_TREE_CLONE | lm.AT_RECURSIVE)))
            posix.close(place)
        return found


def _unescaped(text: str) -> str:
    """A path of mountinfo, where blanks and backslashes are written in octal."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _overlay(root_fd: int, lower: int) -> int:
    """A detached overlay of the directory *lower* with a tmpfs of its own above it.

    The layers must be mounted somewhere in this namespace when the overlay takes its own copies of them; the tmpfs is, on
    the rootfs, for that moment.
    """
    upper = tmpfs(0o755, "1m", _PRIVATE)
    try:
        found = posix.fstat(lower)
        for name in ("upper", "work"):
            posix.mkdir(name, found.st_mode & 0o7777, dir_fd=upper)
        attach(upper, root_fd)
        try:
            layers = (
                ("lowerdir", f"/proc/self/fd/{lower}"),
                ("upperdir", f"/proc/self/fd/{upper}/upper"),
                ("workdir", f"/proc/self/fd/{upper}/work"),
            )
            return filesystem("overlay", layers, _PRIVATE & ~lm.MOUNT_ATTR_NOSUID, source="overlay")
        finally:
            lm.umount2(f"/proc/self/fd/{upper}", lm.MNT_DETACH)
    finally:
        posix.close(upper)
