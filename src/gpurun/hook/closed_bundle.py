"""A container whose config.json the hook cannot read: what its rootfs shows of it.

In a user namespace without the caller's own user (``podman --userns=nomap``) the bundle is closed to a createContainer hook.
crun names the rootfs in the state, and there the mounts are made and the device nodes are there by now.  All in it is the
image's word, and another container may change it while we look: directories are resolved within it, a library is opened
once, and only if it is a regular file by then; a name that has gone is none.  What cannot be looked at for another reason
than what the image has there (no descriptor is left) is an error: the container would lack its libraries.
"""

from __future__ import annotations

import posix
from _stat import S_ISCHR

from gpurun.errors import GpurunError, Step, StepError
from gpurun.gpu.nvidia.cdi.hook_work import MAX_LIBRARIES, ContainerLibrary, library_of
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import O_DIRECTORY, O_NOFOLLOW, O_PATH
from gpurun.ns.path import UNUSABLE, open_file, open_in_root
from gpurun.oci.config import Device
from gpurun.paths import clean_path

#: Names in a directory of the container at most.
_MAX_NAMES = 1 << 16


def libraries_in(rootfs: str, folders: tuple[str, ...]) -> tuple[ContainerLibrary, ...]:
    """The libraries in *folders* of the container, at most MAX_LIBRARIES.  Raises :class:`GpurunError`."""
    found: list[ContainerLibrary] = []
    for folder in dict.fromkeys([clean_path(folder) for folder in folders]):
        with _open_directory(rootfs, folder) as directory:
            for name in _names(directory, folder, "lib"):
                library = _library(directory, folder, name) if ".so" in name else None
                if library is not None:
                    found.append(library)
                if len(found) == MAX_LIBRARIES:
                    return tuple(found)
    return tuple(found)


def devices_in(rootfs: str) -> tuple[Device, ...]:
    """The nodes of NVIDIA's driver that the container has.  Raises :class:`GpurunError`."""
    found = []
    with _open_directory(rootfs, "/dev") as directory:
        for name in _names(directory, "/dev", "nvidia"):
            try:
                node = posix.stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as e:
                raise StepError("look at the container's", f"/dev/{name}", e.errno) from None
            if S_ISCHR(node.st_mode):
                found.append(Device(f"/dev/{name}", "c", posix.major(node.st_rdev), posix.minor(node.st_rdev)))
    return tuple(found)


def _open_directory(rootfs: str, path: str) -> Fd:
    """The directory *path* of the container; -1 where it has none that can be read."""
    with Step("open the rootfs", rootfs):
        root = posix.open(rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)
    with Fd(root) as root_fd:
        try:
            return Fd(open_in_root(root_fd, path, posix.O_RDONLY | O_DIRECTORY))
        except OSError as e:
            if e.errno in UNUSABLE:
                return Fd(-1)
            raise StepError("open the container's", path, e.errno) from None


def _names(directory: int, path: str, prefix: str) -> list[str]:
    """The names in *directory*, which is *path* of the container, that begin with *prefix*, sorted; none for -1."""
    if directory < 0:
        return []
    found = []
    with Step("list the container's", path), posix.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number == _MAX_NAMES:
                raise GpurunError(
                    f"{path} of the container has more than {_MAX_NAMES} names, which no directory of libraries has"
                )
            if entry.name.startswith(prefix):
                found.append(entry.name)
    return sorted(found)


def _library(directory: int, folder: str, name: str) -> ContainerLibrary | None:
    path = f"{folder}/{name}"
    try:
        fd = open_file(directory, name, O_NOFOLLOW)
    except OSError as e:
        if e.errno in UNUSABLE:
            return None
        raise StepError("open the container's library", path, e.errno) from None
    if fd < 0:
        return None
    with Fd(fd):
        return library_of(fd, path)
