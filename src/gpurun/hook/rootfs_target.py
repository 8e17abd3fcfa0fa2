"""The rootfs that edits are put into: how to reach it, and how room is made where it is read-only and lacks a name.

An image on a file system that cannot be written (a read-only snapshot, erofs, squashfs) has no place for mount points
that it was not built with.  Each directory that lacks one is covered by an overlay: the image's directory below, a private
tmpfs above, read-only like the image once all is in place.  Mounts that lie below such a directory are put back on top.
"""

from __future__ import annotations

import posix
from errno import EROFS

from gpurun.errors import GpurunError, StepError, oserror_text, strerror_lower
from gpurun.linux import mount as lm
from gpurun.linux.files import Fd
from gpurun.linux.mountinfo import mounts
from gpurun.ns.directory_cache import DirectoryCache
from gpurun.ns.mount import attach, filesystem, tmpfs
from gpurun.ns.outside import is_outside, nothing_is_foreign
from gpurun.ns.path import existing_part, open_in_root, refuse_kernels_own
from gpurun.output import write_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from gpurun.ns.journal import Journal
    from gpurun.ns.mount import Option
    from gpurun.ns.outside import Foreign

    T = TypeVar("T")

_PRIVATE = lm.MOUNT_ATTR_NOSUID | lm.MOUNT_ATTR_NODEV
_ATTRIBUTES = lm.MOUNT_ATTR_NODEV  # of an overlay, whose lower directory may have programs that are setuid


def uncovered_text(path: str, number: int) -> str:
    """The warning that the tree *path* could not be covered; *number* is an errno."""
    return f"{path} shows the GPUs of all: it cannot be covered: {strerror_lower(number)}"


def _warn_of_uncovered(path: str, number: int) -> None:
    write_stderr(f"gpurun: warning: {uncovered_text(path, number)}")


class Target:
    """A rootfs by its descriptor, in the container's mount namespace.

    *readonly*: it is going to be read-only (``root.readonly``), so nothing need be written into it.  *in_user_namespace*:
    mknod(2) is not allowed.  *replaces_links*: no delete gives back what the image had, so a link takes the place of what
    has its name, as ``ln -sf`` and ldconfig do it.  *proc*: a procfs is mounted on /proc; *proc_fd* is that mount, where it
    is known: whoever shares the rootfs may exchange the directory, and the mount goes with it.  *label* is the SELinux
    context of the file systems that are made (``linux.mountLabel``).  *is_foreign* tells directories of the host from the
    container's own: see :mod:`gpurun.ns.outside`.  *on_uncovered* is called with the path of a tree in /sys that cannot be
    covered, and with the errno that says why: the container goes on without; it writes a warning to stderr if not changed.
    """

    def __init__(
        self,
        root_fd: int,
        journal: Journal,
        in_user_namespace: bool = False,
        readonly: bool = False,
        replaces_links: bool = False,
        proc: bool = False,
        proc_fd: int = -1,
        label: str = "",
        is_foreign: Foreign = nothing_is_foreign,
    ) -> None:
        self.root_fd = root_fd
        self.journal = journal
        self.in_user_namespace = in_user_namespace
        self.readonly = readonly
        self.replaces_links = replaces_links
        self.proc = proc
        self.proc_fd = proc_fd
        self.label = label
        self.on_uncovered = _warn_of_uncovered
        self.places = DirectoryCache(root_fd, journal, refuse_kernels_own)
        self._covers: list[int] = []
        self._is_foreign = is_foreign
        self._outside: dict[str, bool] = {}

    def with_room(self, path: str, action: Callable[[], T]) -> T:
        """The result of *action*, which makes something at *path*; room is made for it if the rootfs is read-only."""
        try:
            return action()
        except (OSError, StepError) as e:
            if e.errno != EROFS:
                raise
        self._make_room(path)
        return action()

    def is_outside(self, path: str) -> bool:
        """Whether what is made at *path* would be made on the host: nothing is.  Raises OSError."""
        directory = path.rpartition("/")[0]
        if directory not in self._outside:
            self._outside[directory] = is_outside(self.root_fd, path, self._is_anothers)
        return self._outside[directory]

    def _is_anothers(self, fd: int) -> bool:
        device = posix.fstat(fd).st_dev
        return all(posix.fstat(cover).st_dev != device for cover in self._covers) and self._is_foreign(fd)

    def finish(self) -> None:
        """Make read-only what was made of room, and let go of all descriptors."""
        self.places.close()
        for fd in self._covers:
            lm.mount_setattr(fd, lm.MOUNT_ATTR_RDONLY)
            posix.close(fd)
        self._covers.clear()

    def _make_room(self, path: str) -> None:
        self.places.renew()
        fd, existing, missing = existing_part(self.root_fd, path)
        with Fd(fd):
            if not existing:
                raise GpurunError(f"the rootfs is read-only and has no /{missing}, which {path} needs: make one in it")
            try:
                below = self._mounts_below(existing)
                cover = _overlay(self.root_fd, fd, self.label)
                attach(cover, fd)
                self._covers.append(cover)
                self._outside.clear()
                for name, tree in below:
                    place = open_in_root(self.root_fd, name)
                    attach(tree, place)
                    posix.close(place)
                    posix.close(tree)
            except OSError as e:
                why = f"an overlay over /{existing} cannot be made: {oserror_text(e)}"
                raise GpurunError(f"the rootfs is read-only and has no place for {path}: {why}") from None

    def _mounts_below(self, existing: str) -> list[tuple[str, int]]:
        """(path in the rootfs, detached copy) of each mount somewhere below the directory *existing*."""
        root = posix.readlink(f"/proc/self/fd/{self.root_fd}").rstrip("/")
        prefix = f"{root}/{existing}/"
        points = sorted({mount.point for mount in mounts() if mount.point.startswith(prefix)})
        outermost = [p for p in points if not any(p.startswith(other + "/") for other in points)]
        names = [p.removeprefix(root + "/") for p in outermost]
        found = []
        for name in names:
            place = open_in_root(self.root_fd, name)
            found.append((name, lm.open_tree(place, "", lm.OPEN_TREE_CLONE | lm.AT_RECURSIVE)))
            posix.close(place)
        return found


def _overlay(root_fd: int, lower: int, label: str) -> int:
    """A detached overlay of the directory *lower* with a tmpfs of its own above it; *label* is the context of all in it.

    The layers must be mounted somewhere in this namespace when the overlay takes its own copies of them; the tmpfs is, on
    the rootfs, for that moment.
    """
    with Fd(tmpfs(0o755, "1m", _PRIVATE, label)) as upper:
        found = posix.fstat(lower)
        for name in ("upper", "work"):
            posix.mkdir(name, found.st_mode & 0o7777, dir_fd=upper)
        if lm.is_older_needed():  # mount(2) is then called in a namespace of its own, where the layers have to be
            from gpurun.linux.older_mounts import new_filesystem

            with Fd(lm.open_tree(lower, "", lm.OPEN_TREE_CLONE)) as copy:
                layers = _layers(copy, upper, label)
                return new_filesystem("overlay", layers, _ATTRIBUTES, "overlay", (upper, copy))
        attach(upper, root_fd)
        try:
            return filesystem("overlay", _layers(lower, upper, label), _ATTRIBUTES, source="overlay")
        finally:
            lm.umount2(f"/proc/self/fd/{upper}", lm.MNT_DETACH)


def _layers(lower: int, upper: int, label: str) -> tuple[Option, ...]:
    """The options of :func:`_overlay`."""
    layers: tuple[Option, ...] = (
        ("lowerdir", f"/proc/self/fd/{lower}"),
        ("upperdir", f"/proc/self/fd/{upper}/upper"),
        ("workdir", f"/proc/self/fd/{upper}/work"),
    )
    return (*layers, ("context", label)) if label else layers
