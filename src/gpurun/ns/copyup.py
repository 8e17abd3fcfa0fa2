"""``tmpcopyup``: a tmpfs that starts with what the image has at its place.

Copies by descriptor and without following links; runs before the tmpfs is attached, so the tree read is the image's.
"""

from __future__ import annotations

import posix
from errno import ESTALE

from gpurun.linux.files import O_CLOEXEC, write_all
from gpurun.linux.fs import O_DIRECTORY, O_NOFOLLOW

_S_IFMT, _S_IFDIR, _S_IFREG, _S_IFLNK = 0o170000, 0o040000, 0o100000, 0o120000


def copy_up(source_fd: int, tmpfs_fd: int) -> None:
    """Copy the tree below the directory *source_fd* into the root of the detached mount *tmpfs_fd*."""
    source = posix.open(".", posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC, dir_fd=source_fd)
    target = posix.open(".", posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC, dir_fd=tmpfs_fd)
    try:
        _copy_directory(source, target)
    finally:
        posix.close(source)
        posix.close(target)


def _copy_directory(source: int, target: int) -> None:
    for name in posix.listdir(source):
        found = posix.stat(name, dir_fd=source, follow_symlinks=False)
        kind, mode = found.st_mode & _S_IFMT, found.st_mode & 0o7777
        if kind == _S_IFLNK:
            posix.symlink(posix.readlink(name, dir_fd=source), name, dir_fd=target)
        elif kind == _S_IFDIR:
            posix.mkdir(name, 0o700, dir_fd=target)
            flags = posix.O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
            below, made = posix.open(name, flags, dir_fd=source), posix.open(name, flags, dir_fd=target)
            try:
                _copy_directory(below, made)
                posix.fchown(made, found.st_uid, found.st_gid)
                posix.fchmod(made, mode)
            finally:
                posix.close(below)
                posix.close(made)
            continue
        elif kind == _S_IFREG:
            _copy_file(source, target, name)
        else:
            posix.mknod(name, kind | mode, found.st_rdev, dir_fd=target)
        posix.chown(name, found.st_uid, found.st_gid, dir_fd=target, follow_symlinks=False)
        if kind != _S_IFLNK:  # chown takes the set-user-id bit away
            posix.chmod(name, mode, dir_fd=target)


def _copy_file(source: int, target: int, name: str) -> None:
    read = posix.open(name, posix.O_RDONLY | O_NOFOLLOW | posix.O_NONBLOCK | O_CLOEXEC, dir_fd=source)
    try:
        if posix.fstat(read).st_mode & _S_IFMT != _S_IFREG:
            # Somebody who shares the tree has put it there just now: of a disk's node all of the disk would be copied.
            raise OSError(ESTALE, posix.strerror(ESTALE), name)
        write = posix.open(name, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_CLOEXEC, 0o600, dir_fd=target)
        try:
            while chunk := posix.read(read, 1 << 20):
                write_all(write, chunk)
        finally:
            posix.close(write)
    finally:
        posix.close(read)
