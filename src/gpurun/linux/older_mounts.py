"""mount(2) in the place of newer calls that a seccomp filter refuses: file systems made, and attributes of mounts set.

Each is done in a child, in a mount namespace of its own that ends with it, and what comes back is the descriptor of a
detached mount, as from the newer calls: no process sees the mount before it is complete, and nothing gets to the host.  A
child takes some milliseconds for each mount.  A mount that is attached already is changed where it is.

Imported where it is needed (:func:`gpurun.ns.mount.import_stand_ins`).
"""

from __future__ import annotations

import posix
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_SEQPACKET, socketpair
from _stat import S_ISDIR
from errno import EINVAL, EIO, EOPNOTSUPP

from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import O_DIRECTORY, O_PATH, PROC_SUPER_MAGIC, fstatfs_type, mount_id
from gpurun.linux.mountinfo import mounts
from gpurun.linux.process import CLONE_NEWNS, setns, unshare
from gpurun.linux.scm_rights import receive_with, send_with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: statfs(2)'s flags of a mount and those of mount(2) that keep them.
_KEEP = (
    (1, lm.MS_RDONLY), (2, lm.MS_NOSUID), (4, lm.MS_NODEV), (8, lm.MS_NOEXEC), (1024, lm.MS_NOATIME),
    (2048, lm.MS_NODIRATIME), (4096, lm.MS_RELATIME), (8192, lm.MS_NOSYMFOLLOW),
)  # fmt: skip
_FLAGS = (
    (lm.MOUNT_ATTR_RDONLY, lm.MS_RDONLY), (lm.MOUNT_ATTR_NOSUID, lm.MS_NOSUID), (lm.MOUNT_ATTR_NODEV, lm.MS_NODEV),
    (lm.MOUNT_ATTR_NOEXEC, lm.MS_NOEXEC), (lm.MOUNT_ATTR_NODIRATIME, lm.MS_NODIRATIME),
    (lm.MOUNT_ATTR_NOSYMFOLLOW, lm.MS_NOSYMFOLLOW),
)  # fmt: skip
_ATIMES = {
    lm.MOUNT_ATTR_RELATIME: lm.MS_RELATIME,
    lm.MOUNT_ATTR_NOATIME: lm.MS_NOATIME,
    lm.MOUNT_ATTR_STRICTATIME: lm.MS_STRICTATIME,
}
#: Options that mount(2) has flags for, and that some file systems know only so.
OPTION_FLAGS = {
    "ro": lm.MS_RDONLY,
    "sync": lm.MS_SYNCHRONOUS,
    "mand": lm.MS_MANDLOCK,
    "dirsync": lm.MS_DIRSYNC,
    "silent": lm.MS_SILENT,
    "iversion": lm.MS_I_VERSION,
    "lazytime": lm.MS_LAZYTIME,
}
#: Options of the security modules, whose values may have commas.
_LABELS = ("context", "fscontext", "defcontext", "rootcontext")
#: A directory and a file that every host has: where a child has the mount meanwhile.
_DIRECTORY, _FILE = "/proc/fs", "/proc/version"

#: A descriptor of the mount namespace that our root directory is of, where that is not our own; -1 where it is.
root_namespace = -1


def new_filesystem(
    fstype: str,
    options: tuple[tuple[str, str | None], ...],
    attributes: int,
    source: str,
    layers: tuple[int, ...] = (),
) -> int:
    """A detached mount of a new file system, as fsopen(2), fsconfig(2) and fsmount(2) make it.  *layers*: see
    :func:`mount_detached`.  Raises OSError.
    """
    flags, data = _flags_and_data(options)
    return mount_detached(fstype, flags, data, attributes, source, layers=layers)


def reconfigure(fd: int, options: tuple[tuple[str, str | None], ...]) -> None:
    """The file system of the attached mount of *fd* gets *options*, as by fspick(2) and FSCONFIG_CMD_RECONFIGURE.

    mount(2) sets the flags of the file system and those of the mount in one; neither changes but as *options* say.  Raises
    OSError.
    """
    flags, data = _flags_and_data(options)
    has = _flags(fd, 0, 0)
    number = mount_id(fd)
    is_read_only = [mount.read_only for mount in mounts() if mount.id == number]
    if not is_read_only:
        raise OSError(EIO, posix.strerror(EIO), "/proc/self/mountinfo")
    if "rw" in [key for key, _ in options] or not is_read_only[0]:
        has &= ~lm.MS_RDONLY
    here = posix.open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)
    try:
        was = lm.MOUNT_ATTR_RDONLY if posix.fstatvfs(fd).f_flag & lm.MS_RDONLY else 0
        lm.mount("", _path_to(fd), "", lm.MS_REMOUNT | has | flags, data)
    finally:
        posix.fchdir(here)
        posix.close(here)
    if was and not (has | flags) & lm.MS_RDONLY:
        _change(fd, was, 0, 0)


def _flags_and_data(options: tuple[tuple[str, str | None], ...]) -> tuple[int, str]:
    """What mount(2) takes for *options*."""
    flags = 0
    words = []
    for key, value in options:
        if value is None and key in OPTION_FLAGS:
            flags |= OPTION_FLAGS[key]
        elif (key, value) != ("rw", None):  # which is to have no flag
            words.append(key if value is None else option(key, value))
    return flags, ",".join(words)


def option(key: str, value: str) -> str:
    """The option as mount(2) takes it."""
    return f'{key}="{value}"' if key in _LABELS and "," in value else f"{key}={value}"


def mount_detached(
    fstype: str, flags: int, data: str, attributes: int, source: str, directory: str = "", layers: tuple[int, ...] = ()
) -> int:
    """A detached mount of what mount(2) makes; relative paths in *data* are of *directory*.  Raises OSError.

    *layers* are detached mounts that *data* names by /proc/self/fd: an overlay takes no layer that is not mounted in the
    namespace of who makes it.
    """

    def make() -> tuple[int, int]:
        for layer in layers:
            with Fd(posix.open(_DIRECTORY, O_PATH | O_DIRECTORY | O_CLOEXEC)) as place:
                lm.move_mount(layer, place)
        if directory:
            posix.chdir(directory)
        lm.mount(source, _DIRECTORY, fstype, flags, data)
        with Fd(posix.open(_DIRECTORY, O_PATH | O_DIRECTORY | O_CLOEXEC)) as made:
            _change(made, attributes, lm.MOUNT_ATTR__ATIME, lm.MS_PRIVATE)
            return lm.open_tree(made, "", lm.OPEN_TREE_CLONE), 0

    return _in_own_namespace(make)[0]


def set_attributes(fd: int, attr_set: int, attr_clr: int, propagation: int, recursive: bool) -> None:
    """What mount_setattr(2) does; *fd* is then a descriptor of the same tree, or of a copy of it in its place.

    Raises OSError, EOPNOTSUPP for an id-mapped mount, which mount(2) cannot make.
    """
    if attr_set & lm.MOUNT_ATTR_IDMAP:
        raise OSError(EOPNOTSUPP, posix.strerror(EOPNOTSUPP))
    try:
        _change_all(fd, attr_set, attr_clr, propagation, recursive)
        return
    except OSError as e:
        if e.errno != EINVAL:  # of a mount that is attached nowhere
            raise

    def make() -> tuple[int, int]:
        place = posix.open(_DIRECTORY if S_ISDIR(posix.fstat(fd).st_mode) else _FILE, O_PATH | O_CLOEXEC)
        with Fd(place):
            lm.move_mount(fd, place)
        try:
            _change_all(fd, attr_set, attr_clr, propagation, recursive)
            errno = 0
        except OSError as e:  # what came here must go back: it ends with this namespace
            errno = e.errno or EIO
        return lm.open_tree(fd, "", lm.OPEN_TREE_CLONE | lm.AT_RECURSIVE), errno

    copy, errno = _in_own_namespace(make)
    with Fd(copy):
        posix.dup2(copy, fd, False)
    if errno:
        raise OSError(errno, posix.strerror(errno))


def _change_all(fd: int, attr_set: int, attr_clr: int, propagation: int, recursive: bool) -> None:
    """The change of an attached mount, and with *recursive* of all mounts below it."""
    _change(fd, attr_set, attr_clr, propagation | (lm.MS_REC if recursive and propagation else 0))
    if not recursive or not (attr_set or attr_clr):
        return
    known = {mount_id(fd)}
    listed = mounts()  # a mount stands after the one that it is on
    points = {mount.id: mount.point for mount in listed}
    # A mount on another's root: no path leads to that one, and only who may mount, and so change it himself, uncovers it.
    covered = {mount.parent for mount in listed if points.get(mount.parent) == mount.point}
    for mount in listed:
        if mount.parent in known:
            known.add(mount.id)
            if mount.id in covered:
                continue
            with Fd(posix.open(mount.point, O_PATH | O_CLOEXEC)) as below:
                if mount_id(below) != mount.id:  # a directory of the path was exchanged
                    raise OSError(EOPNOTSUPP, posix.strerror(EOPNOTSUPP), mount.point)
                _change(below, attr_set, attr_clr, 0)


def _change(fd: int, attr_set: int, attr_clr: int, propagation: int) -> None:
    """One attached mount, by mount(2) on a path that leads to the object of *fd* and nowhere else."""
    here = posix.open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)
    try:
        path = _path_to(fd)
        if propagation:
            lm.mount("", path, "", propagation)
        if attr_set or attr_clr:
            lm.mount("", path, "", lm.MS_BIND | lm.MS_REMOUNT | _flags(fd, attr_set, attr_clr))
    finally:
        posix.fchdir(here)
        posix.close(here)


def _path_to(fd: int) -> str:
    """A path to the object of *fd*, relative to the working directory, which is changed."""
    found = posix.fstat(fd)
    if S_ISDIR(found.st_mode):
        posix.fchdir(fd)
        return "."
    proc = posix.open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)
    with Fd(proc):
        path = f"self/fd/{fd}"
        seen = posix.stat(path, dir_fd=proc) if fstatfs_type(proc) == PROC_SUPER_MAGIC else None
        if seen is None or (seen.st_dev, seen.st_ino) != (found.st_dev, found.st_ino):
            raise OSError(EIO, posix.strerror(EIO), "/proc")
        posix.fchdir(proc)
    return path


def _flags(fd: int, attr_set: int, attr_clr: int) -> int:
    """mount(2)'s flags for what the mount of *fd* has, with the changes."""
    has = posix.fstatvfs(fd).f_flag
    flags = 0
    for statfs_flag, flag in _KEEP:
        flags |= flag if has & statfs_flag else 0
    if not flags & (lm.MS_RELATIME | lm.MS_NOATIME):
        flags |= lm.MS_STRICTATIME
    for attr, flag in _FLAGS:
        flags = flags & ~flag if attr_clr & attr else flags
        flags = flags | flag if attr_set & attr else flags
    if attr_clr & lm.MOUNT_ATTR__ATIME:
        flags &= ~(lm.MS_RELATIME | lm.MS_NOATIME | lm.MS_STRICTATIME)
        flags |= _ATIMES[attr_set & lm.MOUNT_ATTR__ATIME]
    return flags


def _enter_own_namespace() -> None:
    """A mount namespace of only this process, from which nothing gets to another one.

    Its root directory is of that namespace then.  Were it another's (:data:`root_namespace`), the kernel would cut *its*
    mounts off: that takes no more than CAP_SYS_ADMIN there (mount(2), MS_PRIVATE).  Raises OSError, EOPNOTSUPP for that.
    """
    if root_namespace >= 0:
        setns(root_namespace, CLONE_NEWNS)
    before = _root_mount()
    unshare(CLONE_NEWNS)
    if _root_mount() == before:  # a copy has another number
        raise OSError(EOPNOTSUPP, posix.strerror(EOPNOTSUPP), "/")
    lm.mount("", "/", "", lm.MS_PRIVATE | lm.MS_REC)


def keep_namespace() -> None:
    """What stands in is done, from now on, in a copy of the mount namespace that we are in now.

    It is for who has just gone into a user namespace: from there nobody comes back to a mount namespace that is not that
    one's.  The copy is, and nothing gets from it to the other.  Raises OSError.
    """
    global root_namespace
    unshare(CLONE_NEWNS)
    root_namespace = posix.open("/proc/self/ns/mnt", posix.O_RDONLY | O_CLOEXEC)


def _root_mount() -> str:
    with Fd(posix.open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) as root:
        return mount_id(root)


def _in_own_namespace(make: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """What *make* returns, a descriptor and an errno, called in a child in a mount namespace of its own.  Raises OSError."""
    ours, its = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC)
    pid = posix.fork()
    if pid == 0:
        try:
            _enter_own_namespace()
            fd, errno = make()
            send_with(its, bytes([errno]), (fd,))
        except OSError as e:
            its.send(bytes([e.errno or EIO]))
        finally:
            posix._exit(0)
    its.close()
    try:
        answer, files = receive_with(ours, 1, 1)
    finally:
        ours.close()
        posix.waitpid(pid, 0)
    if not files:
        errno = answer[0] if answer else EIO
        raise OSError(errno, posix.strerror(errno))
    return files[0], answer[0]


lm.older_setattr = set_attributes
