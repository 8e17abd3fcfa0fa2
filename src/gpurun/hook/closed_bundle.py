"""A container whose config.json the hook cannot read: what its rootfs shows of it.

In a user namespace without the caller's own user (``podman --userns=nomap``) the bundle is closed to a createContainer hook.
crun names the rootfs in the state, and there the mounts are made and the device nodes are there by now.  All in it is the
image's word: directories are resolved within it, and only regular files are opened.
"""

from __future__ import annotations

import posix
from _stat import S_ISCHR, S_ISREG

from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.fs import O_DIRECTORY, RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, openat2
from gpurun.oci.config import Device, Mount
from gpurun.paths import clean_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def libraries_in(rootfs: str, folders: tuple[str, ...]) -> tuple[Mount, ...]:
    """The libraries in *folders* of the container, as if each had been bound there: their paths on the host are good as long
    as this process lives."""
    found = []
    for folder in dict.fromkeys([clean_path(folder) for folder in folders]):
        for fd, name, mode in _entries(rootfs, folder):
            if name.startswith("lib") and ".so" in name and S_ISREG(mode):
                found.append(Mount(f"{folder}/{name}", "bind", f"/proc/self/fd/{fd}/{name}"))
    return tuple(found)


def devices_in(rootfs: str) -> tuple[Device, ...]:
    """The nodes of NVIDIA's driver that the container has."""
    found = []
    for fd, name, mode in _entries(rootfs, "/dev"):
        if name.startswith("nvidia") and S_ISCHR(mode):
            number = posix.stat(name, dir_fd=fd, follow_symlinks=False).st_rdev
            found.append(Device(f"/dev/{name}", "c", posix.major(number), posix.minor(number)))
    return tuple(found)


def _entries(rootfs: str, directory: str) -> Iterator[tuple[int, str, int]]:
    """(descriptor of the *directory* in the rootfs, name, type and mode) of what is in it; the descriptor stays open."""
    try:
        root = posix.open(rootfs, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        fd = openat2(root, directory, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    except OSError:
        return
    for name in sorted(posix.listdir(fd)):
        yield fd, name, posix.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
