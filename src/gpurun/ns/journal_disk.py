"""Where journals outlive a boot, and what a machine that stopped has left in a rootfs.

A journal is a file ``DIRECTORY/BOOT/ROOTFS.CONTAINER``: the kernel's boot_id, digests of the rootfs' path and of state root
and id.  The state directory, which is gone after a boot, only links to it.  So the next create of that rootfs finds what was
made in it only by its path, and nothing in the rootfs is believed.  The directory is ours: another user's is not read.

A path may hold another image by now.  So a journal says which directory it was: the time at which that was made, which
cannot be set, or its inode where the file system keeps no such time.
"""

from __future__ import annotations

import posix
from _blake2 import blake2b
from _stat import S_ISREG
from _struct import unpack_from

from gpurun.linux.files import O_CLOEXEC, Fd, mkdir_p, read_fd
from gpurun.linux.fs import AT_EMPTY_PATH, O_DIRECTORY, O_NOFOLLOW, O_PATH
from gpurun.linux.libc import NR, buffer, cstring, syscall
from gpurun.linux.owners import is_own
from gpurun.linux.procfs import boot_id, in_user_namespace
from gpurun.record import Record

#: Where root keeps journals; other users, and root of a user namespace, below $XDG_STATE_HOME.
SYSTEM_DIRECTORY = "/var/lib/gpurun/journals"
#: How many journals of earlier boots there may be, whose rootfs has not been used again; the oldest go.
MAX_EARLIER = 1024
#: Bytes of a journal that is read.
LIMIT = 256 << 20

_STATX_BTIME = 0x800
#: How often a directory is made again that a delete removes at the same time.
_TRIES = 5


class Earlier(Record):
    """A journal of an earlier boot: the directory *folder* of that boot, its *name* there, the *data*."""

    folder: str
    name: str
    data: bytes
    written: int  # mtime, in nanoseconds

    @property
    def path(self) -> str:
        """The path of the journal's file."""
        return f"{self.folder}/{self.name}"


def directories() -> tuple[str, ...]:
    """Where journals of ours can be, the first that can be written is taken."""
    found = [SYSTEM_DIRECTORY] if posix.geteuid() == 0 else []
    if posix.geteuid() != 0 or in_user_namespace():
        state = posix.environ.get(b"XDG_STATE_HOME", b"").decode("utf-8", "surrogateescape")
        home = posix.environ.get(b"HOME", b"").decode("utf-8", "surrogateescape")
        state = state or (f"{home}/.local/state" if home else "")
        if state.startswith("/"):
            found.append(f"{state}/gpurun/journals")
    return tuple(found)


def rootfs_key(rootfs: str) -> str:
    """The digest of the path of *rootfs* without links; "" where it is not there."""
    try:
        with Fd(posix.open(rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)) as fd:
            return _digest(posix.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        return ""


def container_key(root: str, container_id: str) -> str:
    """The key of the container *container_id* of the state root *root* in the names of journals."""
    return _digest(f"{root}\0{container_id}")


def identity(rootfs_fd: int) -> str:
    """What tells the directory *rootfs_fd* from another one at its path."""
    data = buffer(256)
    try:
        syscall(NR["statx"], rootfs_fd, cstring(""), AT_EMPTY_PATH, _STATX_BTIME, data)
        if unpack_from("I", data.raw)[0] & _STATX_BTIME:
            seconds, nanoseconds = unpack_from("qI", data.raw, 80)
            return f"made {seconds}.{nanoseconds:09}"
    except OSError:
        pass  # a kernel or a filter that knows no statx(2)
    return f"inode {posix.fstat(rootfs_fd).st_ino}"


def places(root: str, container_id: str, rootfs: str) -> tuple[str, ...]:
    """Where the journal of a container of this boot may be, the best path first; none where the boot is not known."""
    key, boot = rootfs_key(rootfs), boot_id()
    if not key or not boot:
        return ()
    return tuple([f"{directory}/{boot}/{key}.{container_key(root, container_id)}" for directory in directories()])


def make_file(path: str) -> bool:
    """Make the file for a journal at *path*, empty, or find that of a container of the same name in this boot.

    Whether it is there: on a read-only host, with a full disk, or where the directory is another user's, it is not.
    """
    folder, _, name = path.rpartition("/")
    directory, _, boot = folder.rpartition("/")
    for _ in range(_TRIES):
        try:
            mkdir_p(folder, 0o700)
            with Fd(_open_own(directory)) as held:
                flags = posix.O_WRONLY | posix.O_CREAT | O_NOFOLLOW | posix.O_NONBLOCK | O_CLOEXEC
                posix.close(posix.open(f"{boot}/{name}", flags, 0o600, dir_fd=held))
            return True
        except FileNotFoundError:
            continue  # a delete has just removed the empty directory
        except OSError:
            break
    return False


def remove(path: str) -> None:
    """Remove the journal *path*, and its directories with the last one.  Raises OSError where the journal stays."""
    posix.unlink(path)
    folder = path.rpartition("/")[0]
    try:
        posix.rmdir(folder)
        posix.rmdir(folder.rpartition("/")[0])
    except OSError:
        pass  # other journals are there


def is_of_this_boot(path: str) -> bool:
    """Whether the journal *path* is one of the boot that is."""
    return path.rpartition("/")[0].endswith(f"/{boot_id()}")


def find_earlier(rootfs_part: str = "", container_part: str = "") -> tuple[Earlier, ...]:
    """The journals of earlier boots of that rootfs, or of that container, the newest first; nothing where none can be read.

    It is asked by every create: without an earlier boot it lists one directory.
    """
    found: list[Earlier] = []
    boot = ""
    for directory in directories():
        try:
            folders = [f"{directory}/{name}" for name in posix.listdir(directory)]
        except OSError:
            continue  # there never was one
        boot = boot or boot_id()
        for folder in folders:
            if boot and not folder.endswith(f"/{boot}"):
                found += _matching(directory, folder, rootfs_part, container_part)
    return tuple(sorted(found, key=_written, reverse=True))


def is_in_use(rootfs_part: str) -> bool:
    """Whether a container of this boot has a journal for the rootfs."""
    return any(name.startswith(f"{rootfs_part}.") for _, name in _of_this_boot())


def find_now(root: str, container_id: str) -> tuple[str, ...]:
    """The paths of the journals of this boot that the container has; one, as a rule."""
    part = f".{container_key(root, container_id)}"
    return tuple([f"{folder}/{name}" for folder, name in _of_this_boot() if name.endswith(part)])


def _of_this_boot() -> list[tuple[str, str]]:
    """(directory, name) of each journal of this boot."""
    found: list[tuple[str, str]] = []
    for directory in directories():
        folder = f"{directory}/{boot_id()}"
        try:
            found += [(folder, name) for name in posix.listdir(folder)]
        except OSError:
            continue  # none was made since
    return found


def forget(journal: Earlier) -> None:
    """Remove *journal*, which another create may have done by now.  Raises OSError where it stays."""
    try:
        remove(journal.path)
    except FileNotFoundError:
        pass


def lock() -> int:
    """The lock that orders those who undo journals of earlier boots; closing it releases it, -1 where there is none."""
    import fcntl

    for directory in directories():
        try:
            fd = _open_own(directory)
        except OSError:
            continue
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd
    return -1


def make_room() -> None:
    """Remove the oldest journals of earlier boots where there are too many; what fails is left."""
    for journal in find_earlier()[MAX_EARLIER:]:
        try:
            forget(journal)
        except OSError:
            pass


def _matching(directory: str, folder: str, rootfs_part: str, container_part: str) -> list[Earlier]:
    found: list[Earlier] = []
    try:
        with Fd(_open_own(directory)) as held, Fd(_open_own(folder.rpartition("/")[2], held)) as inner:
            for name in posix.listdir(inner):
                ours, _, theirs = name.partition(".")
                if (rootfs_part and ours != rootfs_part) or (container_part and theirs != container_part):
                    continue
                flags = posix.O_RDONLY | O_NOFOLLOW | posix.O_NONBLOCK | O_CLOEXEC
                with Fd(posix.open(name, flags, dir_fd=inner)) as fd:
                    seen = posix.fstat(fd)
                    if S_ISREG(seen.st_mode) and is_own(seen, fd):
                        data = read_fd(fd, LIMIT) if rootfs_part or container_part else b""
                        found.append(Earlier(folder, name, data, seen.st_mtime_ns))
    except OSError:
        pass  # another user's, or another process is faster
    return found


def _open_own(path: str, dir_fd: int | None = None) -> int:
    """The directory, if it is ours and no other user can write there; raises OSError."""
    fd = posix.open(path, posix.O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, dir_fd=dir_fd)
    found = posix.fstat(fd)
    if found.st_mode & 0o022 or not is_own(found, fd):
        posix.close(fd)
        raise PermissionError
    return fd


def _written(journal: Earlier) -> int:
    return journal.written


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
