"""Directories in a container that are not its own: binds of the host's /dev or /dev/dri, volumes.

What is made there is made on the host, and stays when the container is gone.  The image itself is the container's (what is
made in it is undone), and so is a tmpfs that was made for the container.
"""

from __future__ import annotations

import posix
from errno import EXDEV

from gpurun.errors import GpurunError
from gpurun.linux.files import Fd
from gpurun.linux.fs import O_DIRECTORY, O_PATH, TMPFS_MAGIC, fstatfs_type, openat2
from gpurun.linux.mountinfo import mounts
from gpurun.ns.journal import ON_ROOT
from gpurun.ns.path import existing_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    #: Whether the directory of a descriptor, which is not of the root's mount, is not the container's own.
    Foreign = Callable[[int], bool]

_OVERLAYFS_MAGIC = 0x794C7630


def nothing_is_foreign(fd: int) -> bool:
    """Where it is not known what is the host's: nvidia-container-cli, called in the container's own mount namespace."""
    return False


def other_than(own: set[int]) -> Foreign:
    """All but the file systems *own* (st_dev), which were made for the container."""
    return lambda fd: posix.fstat(fd).st_dev not in own


def other_than_the_containers() -> Foreign:
    """The same for a container that others have made: its own is a tmpfs, or an overlay, that is not mounted where we are
    now, in the mount namespace of the host.  Raises OSError, GpurunError where our mounts cannot be read."""
    ours = {mount.device for mount in mounts()}

    def is_foreign(fd: int) -> bool:
        device = posix.fstat(fd).st_dev
        if f"{posix.major(device)}:{posix.minor(device)}" in ours:
            return True
        return fstatfs_type(fd) not in (TMPFS_MAGIC, _OVERLAYFS_MAGIC)

    return is_foreign


def is_outside(root_fd: int, path: str, is_foreign: Foreign) -> bool:
    """Whether what would be made at *path* of the rootfs, with the directories that are missing above it, would be made in
    a directory from outside.  Raises OSError where *path* cannot be resolved."""
    fd, existing, _ = existing_part(root_fd, path)
    with Fd(fd):
        return is_foreign(fd) and not _on_root(root_fd, existing)


def refuse_outside(path: str) -> GpurunError:
    """The error for a device node that is not at *path*, where nothing may be made."""
    directory = path.rpartition("/")[0] or "/"
    return GpurunError(
        f'cannot make the device node "{path}": {directory} of the container is a bind mount of the host, in which '
        "gpurun makes nothing: load the driver so that the host has the node, or do not mount the host's directory there"
    )


def _on_root(root_fd: int, existing: str) -> bool:
    try:
        posix.close(openat2(root_fd, existing or ".", O_PATH | O_DIRECTORY, ON_ROOT))
    except OSError as e:
        if e.errno != EXDEV:
            raise
        return False
    return True
