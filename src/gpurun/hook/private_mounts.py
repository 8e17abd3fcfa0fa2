"""What gpurun writes itself for a container: read-only files on private tmpfs mounts, never in the image."""

from __future__ import annotations

import posix
from _stat import S_ISDIR, S_ISREG
from errno import EINVAL, ESTALE

from gpurun.errors import StepError
from gpurun.linux import mount as lm
from gpurun.linux.files import O_CLOEXEC, Fd, write_all
from gpurun.linux.fs import (
    AT_FDCWD,
    O_DIRECTORY,
    O_NOFOLLOW,
    O_PATH,
    PROC_SUPER_MAGIC,
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    fstatfs_type,
    openat2,
)
from gpurun.ns.mount import attach, private_copy, tmpfs
from gpurun.ns.options import parse_options
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import EditMount, FileEdit, ProcTree
    from gpurun.hook.rootfs_target import Target

_ON_PROC = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_SYS = "/sys/"
_MASK = "mask"
#: KiB that a small file may take: a page, of whatever size this kernel's are.
_PER_FILE = 64
_PRIVATE = lm.MOUNT_ATTR_NOSUID | lm.MOUNT_ATTR_NODEV | lm.MOUNT_ATTR_NOEXEC


def step_error(step: str, path: str, error: OSError) -> StepError:
    """*error* of the kernel as the failure of *step* on *path*."""
    return StepError(step, path, error.errno or EINVAL)


def _write_file(directory_fd: int, path: str, content: bytes, mode: int) -> None:
    """A new file on a tmpfs of ours; *path* is relative."""
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | O_NOFOLLOW | O_CLOEXEC
    with Fd(posix.open(path, flags, mode, dir_fd=directory_fd)) as fd:
        write_all(fd, content)


def _make_parents(directory_fd: int, path: str, made: set[str]) -> None:
    """The directories of *path* (which is a directory) on a tmpfs of ours, but for those *made* before."""
    if not path or path in made:
        return
    _make_parents(directory_fd, path.rpartition("/")[0], made)
    posix.mkdir(path, 0o555, dir_fd=directory_fd)
    made.add(path)


class PreparedTree(Record):
    """A tree that is attached nowhere yet: a tmpfs with the files in it, and copies of what the host binds in it."""

    prefix: str  # before the names in it
    mount: int
    binds: tuple[int, ...]

    def close(self) -> None:
        """Let go of all of it; what is attached stays."""
        for fd in (self.mount, *self.binds):
            posix.close(fd)


def prepare_tree(tree: ProcTree, label: str, prefix: str | None = None, sources: tuple[int, ...] = ()) -> PreparedTree:
    """*tree*, but for attaching it; without a *prefix* with the one that this host's /proc makes likely.

    *label* is the SELinux context of what is made.  *sources* are those of its binds where they are open already; they
    become part of it.  Raises :class:`StepError`.
    """
    if prefix is None:
        prefix = _prefix(tree.path) if tree.path.startswith("/proc/") and not _is_there(tree.path) else ""
    binds = list(sources)
    mount = -1
    try:
        for bind in tree.binds[len(binds) :]:
            binds.append(bind_source(bind))
        mount = tmpfs(0o555, f"{1024 + _PER_FILE * len(tree.files)}k", _PRIVATE, label)
        _fill(mount, tree, prefix)
        lm.mount_setattr(mount, lm.MOUNT_ATTR_RDONLY)
    except (OSError, StepError) as e:
        for fd in (mount, *binds):
            if fd >= 0:
                posix.close(fd)
        if isinstance(e, StepError):
            raise
        raise step_error(_MASK, tree.path, e) from None
    return PreparedTree(prefix, mount, tuple(binds))


def mask_tree(rootfs: Target, tree: ProcTree, prepared: PreparedTree | None = None, sources: tuple[int, ...] = ()) -> None:
    """A read-only tmpfs over the host's tree: *files* written, *binds* put back from the host.

    *prepared* is closed, and used if it fits; so are *sources* (see :func:`prepare_tree`).  Raises :class:`StepError`.
    """
    try:
        target, prefix = _tree_target(rootfs, tree.path)
        with Fd(target):
            if target < 0:
                return
            if prepared is None or prepared.prefix != prefix:
                if prepared is not None:
                    prepared.close()
                sources, opened = (), sources
                prepared = prepare_tree(tree, rootfs.label, prefix, opened)
            try:
                attach(prepared.mount, target)
            except OSError as e:
                if not tree.path.startswith(_SYS):
                    raise
                rootfs.on_uncovered(tree.path, e.errno or EINVAL)
                return
            for bind, source in zip(tree.binds, prepared.binds, strict=True):
                name = prefix + bind.container_path.removeprefix(tree.path).lstrip("/")
                with Fd(posix.open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=prepared.mount)) as place:
                    attach(source, place)
    except OSError as e:
        raise step_error(_MASK, tree.path, e) from None
    finally:
        for fd in sources:
            posix.close(fd)
        if prepared is not None:
            prepared.close()


def _is_there(path: str) -> bool:
    try:
        posix.lstat(path)
    except OSError:
        return False  # for a container it is the same whether it is absent or out of reach
    return True


def _tree_target(target: Target, path: str) -> tuple[int, str]:
    """Where the tmpfs goes, and what to put before the names in it; a negative descriptor when there is nothing to hide."""
    if path.startswith(_SYS):
        return _place_in_sys(target, path), ""
    if not path.startswith("/proc/"):
        return target.with_room(path, lambda: target.places.made(path)), ""
    proc = _open_proc(target)
    if proc < 0:
        return -1, ""
    with Fd(proc):
        # Of a host's /proc that is bound with shared propagation: what covers it here would cover the host's own.
        lm.mount_setattr(proc, propagation=lm.MS_SLAVE)
        inner = path.removeprefix("/proc/")
        try:
            return openat2(proc, inner, O_PATH | O_DIRECTORY, _ON_PROC), ""
        except FileNotFoundError:
            # No such driver in this kernel: a simulated one (GPURUN_SYSROOT).  no directory can be made in procfs, so the
            # tmpfs covers the parent, which every kernel has.
            parent, _, name = inner.rpartition("/")
            try:
                return openat2(proc, parent, O_PATH | O_DIRECTORY, _ON_PROC), f"{name}/"
            except FileNotFoundError:
                return -1, ""  # mounted with subset=pid: nothing of any driver is in there


def _place_in_sys(target: Target, path: str) -> int:
    """The directory *path* of the container's /sys; negative where there is none, or where it cannot be covered.

    The container works without the cover, so this is not an error.  Links are not followed: they could lead to a directory
    that the host shares.
    """
    try:
        with Fd(openat2(target.root_fd, "sys", O_PATH | O_DIRECTORY | O_NOFOLLOW, _ON_PROC & ~RESOLVE_NO_XDEV)) as sys:
            try:
                lm.mount_setattr(sys, propagation=lm.MS_SLAVE)  # as with /proc
            except OSError as e:
                if e.errno != EINVAL:  # a directory of the rootfs, which is cut off the host's mounts already
                    raise
            return openat2(sys, path.removeprefix(_SYS), O_PATH | O_DIRECTORY, _ON_PROC)
    except FileNotFoundError:
        return -1
    except OSError as e:
        target.on_uncovered(path, e.errno or EINVAL)
        return -1


def _open_proc(target: Target) -> int:
    """The procfs of the container; -1 where it has none: /proc is missing, or an empty directory of the image.

    Raises OSError where there is one and it is not found at its place: the directory was exchanged meanwhile, and the
    container would see the GPUs of all.
    """
    if target.proc_fd >= 0:
        return posix.dup(target.proc_fd)
    proc = -1
    try:
        proc = openat2(target.root_fd, "proc", O_PATH | O_DIRECTORY | O_NOFOLLOW, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
        if fstatfs_type(proc) == PROC_SUPER_MAGIC:
            return proc
        posix.close(proc)
    except FileNotFoundError:
        pass
    if target.proc:
        raise OSError(ESTALE, posix.strerror(ESTALE))
    return -1


def _prefix(path: str) -> str:
    """What stands before the names in a tree at *path* that covers its parent."""
    return path.rpartition("/")[2] + "/"


def _fill(mount: int, tree: ProcTree, prefix: str) -> None:
    def name_of(edit: FileEdit | EditMount) -> str:
        path = edit.container_path if hasattr(edit, "container_path") else edit.path
        return prefix + path.removeprefix(tree.path).lstrip("/")

    made: set[str] = set()
    _make_parents(mount, prefix.rstrip("/"), made)
    for file in tree.files:
        _make_parents(mount, name_of(file).rpartition("/")[0], made)
        _write_file(mount, name_of(file), file.content, file.mode)
    for bind in tree.binds:
        if bind.kind == "dir":
            _make_parents(mount, name_of(bind), made)
            continue
        _make_parents(mount, name_of(bind).rpartition("/")[0], made)
        _write_file(mount, name_of(bind), b"", 0o444)


def bind_source(bind: EditMount) -> int:
    """A detached copy of what the host has there, with the options of *bind*; a symbolic link is refused.

    Raises :class:`StepError`.
    """
    options = parse_options(bind.options)
    try:
        source = private_copy(AT_FDCWD, bind.host_path, options.attr_set, options.attr_clr, options.recursive)
    except OSError as e:
        raise step_error("mount", bind.host_path, e) from None
    if not (S_ISDIR if bind.kind == "dir" else S_ISREG)(posix.fstat(source).st_mode):
        posix.close(source)
        raise StepError("mount", bind.host_path, EINVAL)
    return source


def private_file(root_fd: int, name: str, content: bytes, label: str) -> int:
    """A detached read-only mount of one new file, with the SELinux context *label* if there is one.

    A file of a mount that is attached nowhere cannot be cloned, so its tmpfs is attached (on the rootfs) for that moment.
    """
    with Fd(tmpfs(0o755, f"{len(content) // 1024 + 64}k", _PRIVATE, label)) as mount:
        _write_file(mount, name, content, 0o444)
        attach(mount, root_fd)
        try:
            with Fd(posix.open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=mount)) as file:
                tree = lm.open_tree(file, "", lm.OPEN_TREE_CLONE)
        finally:
            lm.umount2(f"/proc/self/fd/{mount}", lm.MNT_DETACH)
    lm.mount_setattr(tree, lm.MOUNT_ATTR_RDONLY | _PRIVATE, propagation=lm.MS_PRIVATE)
    return tree
