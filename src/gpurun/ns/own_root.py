"""The rootfs of a container that has no mount namespace of its own, mounted on itself among the caller's mounts.

So what the container mounts is on a private mount, seen in no other mount namespace, its root can be made read-only, and one
umount(2) takes all of it away when the container goes.  ``<root>/<container>/mounted`` tells which mount it is.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError, StepError
from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC, Fd, read_file, write_all
from gpurun.linux.fs import O_DIRECTORY, O_NOFOLLOW, O_PATH, mount_id
from gpurun.linux.mountinfo import mounts
from gpurun.ns.mount import attach, import_stand_ins, private_copy


def mount_root(rootfs: str, record: str) -> bool:
    """Mount the directory *rootfs* on itself, with what is mounted in it, and write down which mount that is in the new file
    *record*; returns whether it is done.

    It is not where we may not mount (a user namespace among the host's mounts), nor for the caller's own root directory,
    which nothing covers for those who are in it.  Raises :class:`StepError` where the mount fails.
    """
    import_stand_ins()
    place = posix.open(rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)
    tree = -1
    try:
        path = posix.readlink(f"/proc/self/fd/{place}")
        if path == "/":
            return False
        try:
            tree = private_copy(place, "")
        except PermissionError:
            return False
        _write(record, f"{mount_id(tree)} {path}")
        attach(tree, place)
        # A mount in a shared one becomes shared itself when it is attached.
        lm.mount_setattr(tree, propagation=lm.MS_PRIVATE, recursive=True)
    except OSError as e:
        raise StepError("mount the rootfs", rootfs, e.errno) from None
    finally:
        for fd in (place, tree):
            if fd >= 0:
                posix.close(fd)
    return True


def unmount_root(record: str) -> None:
    """Take away the mount of *record*, with all that is mounted in it, and then *record*.

    Raises :class:`GpurunError` while another mount covers it; then *record* stays, and this can be called again.
    """
    try:
        words = read_file(record).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return
    number, _, path = words.partition(" ")
    try:
        place = posix.open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        place = -1  # who has removed the directory has taken the mount away before
    if place >= 0:
        with Fd(place):
            on_top = mount_id(place) == number
        if on_top:
            # In a volume that shares its mounts with the host's the unmount would be the host's, too.
            lm.mount("", path, "", lm.MS_PRIVATE | lm.MS_REC)
            lm.umount2(path, lm.MNT_DETACH)
        elif _is_mounted(number):
            raise GpurunError(f"cannot unmount the rootfs {path}: unmount first what is mounted over it, then delete again")
    posix.unlink(record)


def _write(path: str, text: str) -> None:
    with Fd(posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_CLOEXEC, 0o600)) as fd:
        write_all(fd, text.encode("utf-8", "surrogateescape"))


def _is_mounted(number: str) -> bool:
    return any(mount.id == number for mount in mounts())
