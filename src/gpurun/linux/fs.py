"""Files by descriptor: openat2(2), statx(2), statfs(2), close_range(2), magic numbers of file systems."""

from __future__ import annotations

import posix
from _stat import S_ISCHR
from _struct import pack, unpack_from
from errno import EAGAIN, EINTR

from gpurun.linux import files
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.libc import NR, buffer, cstring, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_SYMLINK_NOFOLLOW = 0x100
AT_RECURSIVE = 0x8000

# openat2(2) resolve flags
RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

# statfs(2) f_type
PROC_SUPER_MAGIC = 0x9FA0
SYSFS_MAGIC = 0x62656572
TMPFS_MAGIC = 0x01021994
DEVPTS_SUPER_MAGIC = 0x1CD1
CGROUP2_SUPER_MAGIC = 0x63677270

_STATX_MNT_ID = 0x1000
CLOSE_RANGE_CLOEXEC = 4
#: The highest descriptor that :func:`close_others` has left open, and how many more there can be at a time.
_left: list[int] = []
_SPARE = 1024
_RLIMIT_NOFILE = 7

O_PATH = files.O_PATH
O_NOFOLLOW = posix.O_NOFOLLOW
O_DIRECTORY = posix.O_DIRECTORY


def openat2(dir_fd: int, path: str, flags: int, resolve: int) -> int:
    """openat2(2): open *path* relative to *dir_fd* under the *resolve* rules; the descriptor is close-on-exec.

    EAGAIN (a rename raced with ``..`` under RESOLVE_IN_ROOT) is retried a bounded number of times, as the man page asks.
    """
    how = pack("QQQ", flags | O_CLOEXEC, 0, resolve)
    name = cstring(path)
    for attempt in range(128):
        try:
            return syscall(NR["openat2"], dir_fd, name, how, len(how))
        except OSError as e:
            if e.errno not in (EAGAIN, EINTR) or attempt == 127:
                raise
    raise AssertionError("unreachable")


def fstatfs_type(fd: int) -> int:
    """``f_type`` of the file system that *fd* is on (statfs(2)); works on O_PATH descriptors."""
    buf = buffer(120)
    syscall(NR["fstatfs"], fd, buf)
    return int(unpack_from("q", buf.raw)[0])


def statfs_type(path: str) -> int:
    """``f_type`` of the file system that *path* is on (statfs(2))."""
    buf = buffer(120)
    syscall(NR["statfs"], cstring(path), buf)
    return int(unpack_from("q", buf.raw)[0])


def mount_id(fd: int, pid: int | str = "self") -> str:
    """The number of the mount that *fd* of the process *pid* is on (proc_pid_fdinfo(5)).  Raises OSError."""
    lines = files.read_file(f"/proc/{pid}/fdinfo/{fd}").decode().splitlines()
    return next((line[7:].strip() for line in lines if line.startswith("mnt_id:")), "")


def same_mount(one: int, other: int) -> bool:
    """Whether both descriptors, which may be of O_PATH, are on one mount (statx(2)); it takes no /proc.  Raises OSError."""
    numbers: list[int] = []
    for fd in (one, other):
        data = buffer(256)
        syscall(NR["statx"], fd, cstring(""), AT_EMPTY_PATH, _STATX_MNT_ID, data)
        numbers.append(unpack_from("Q", data.raw, 144)[0])  # stx_mnt_id
    return numbers[0] == numbers[1]


def is_null_device(fd: int) -> bool:
    """Whether *fd*, which may be one of O_PATH, refers to the null device, character device 1:3."""
    found = posix.fstat(fd)
    return S_ISCHR(found.st_mode) and found.st_rdev == posix.makedev(1, 3)


def close_range(first: int, last: int = 0xFFFFFFFF, flags: int = 0) -> None:
    """close_range(2): close (or mark, with CLOSE_RANGE_CLOEXEC) all descriptors from *first* to *last*."""
    try:
        syscall(NR["close_range"], first, last, flags)
        return
    except OSError:
        pass  # a seccomp filter refuses it, with whichever error: no other is there for what we ask
    for fd in _open_ones():
        if not first <= fd <= last:
            continue
        try:
            if flags & CLOSE_RANGE_CLOEXEC:
                posix.set_inheritable(fd, False)
            else:
                posix.close(fd)
        except OSError:
            pass  # not open


def _open_ones() -> Iterable[int]:
    """The numbers of our open descriptors, or all that there can be.

    /proc is asked once, before :func:`close_others` has closed the rest: that is on the host's tree, and in a container
    nothing is to be opened.  From then on the kernel gives out low numbers.
    """
    if _left:
        return range(_left[0] + _SPARE)
    try:
        fd = posix.open("/proc/self/fd", posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    except OSError:
        return range(_many())
    try:
        found, seen = posix.fstat(fd), posix.stat(str(fd), dir_fd=fd)
        if fstatfs_type(fd) == PROC_SUPER_MAGIC and (found.st_dev, found.st_ino) == (seen.st_dev, seen.st_ino):
            return [int(name) for name in posix.listdir(fd) if name != str(fd)]
    except OSError:
        pass  # another process's table, in which this descriptor is another file
    finally:
        posix.close(fd)
    return range(_many())


def _many() -> int:
    """A number that no descriptor of ours has reached: limits are lowered only when few are open."""
    limit = buffer(16)
    syscall(NR["prlimit64"], 0, _RLIMIT_NOFILE, None, limit)
    return min(max(int(unpack_from("Q", limit.raw, 8)[0]), 1 << 16), 1 << 20)


def close_others(keep: tuple[int, ...], flags: int = 0) -> None:
    """As :func:`close_range`, all descriptors from 3 on but those in *keep*."""
    first = 3
    highest = max(keep, default=first)
    for fd in sorted(keep):
        if fd > first:
            close_range(first, fd - 1, flags)
        first = max(first, fd + 1)
    close_range(first, flags=flags)
    if not flags:
        _left[:] = [highest]
