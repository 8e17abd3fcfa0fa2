"""``tmpcopyup``: a tmpfs that starts with what the image has at its place.

Copies by descriptor and without following links; runs before the tmpfs is attached, so the tree read is the image's.
"""

from __future__ import annotations

import posix
from _stat import S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_IMODE
from errno import ESTALE

from gpurun.linux.files import CHUNK, O_CLOEXEC, Fd, write_all
from gpurun.linux.fs import O_DIRECTORY, O_NOFOLLOW
from gpurun.ns.path import open_file


def copy_up(source_fd: int, tmpfs_fd: int) -> None:
    """Copy the tree below the directory *source_fd* into the root of the detached mount *tmpfs_fd*."""
    source = posix.open(".", posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC, dir_fd=source_fd)
    target = posix.open(".", posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC, dir_fd=tmpfs_fd)
    with Fd(source), Fd(target):
        _copy_directory(source, target)


def _copy_directory(source: int, target: int) -> None:
    for name in posix.listdir(source):
        found = posix.stat(name, dir_fd=source, follow_symlinks=False)
        kind, mode = S_IFMT(found.st_mode), S_IMODE(found.st_mode)
        if kind == S_IFLNK:
            posix.symlink(posix.readlink(name, dir_fd=source), name, dir_fd=target)
        elif kind == S_IFDIR:
            posix.mkdir(name, 0o700, dir_fd=target)
            flags = posix.O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
            below, made = posix.open(name, flags, dir_fd=source), posix.open(name, flags, dir_fd=target)
            with Fd(below), Fd(made):
                _copy_directory(below, made)
                posix.fchown(made, found.st_uid, found.st_gid)
                posix.fchmod(made, mode)
            continue
        elif kind == S_IFREG:
            _copy_file(source, target, name)
        else:
            posix.mknod(name, kind | mode, found.st_rdev, dir_fd=target)
        posix.chown(name, found.st_uid, found.st_gid, dir_fd=target, follow_symlinks=False)
        if kind != S_IFLNK:  # chown takes the set-user-id bit away
            posix.chmod(name, mode, dir_fd=target)


def _copy_file(source: int, target: int, name: str) -> None:
    read = open_file(source, name, O_NOFOLLOW)
    if read < 0:  # another process has put it there just now: of a disk's node all of the disk would be copied
        raise OSError(ESTALE, posix.strerror(ESTALE), name)
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_CLOEXEC
    with Fd(read), Fd(posix.open(name, flags, 0o600, dir_fd=target)) as write:
        while chunk := posix.read(read, CHUNK):
            write_all(write, chunk)
