"""Where journals are kept, ``<root>/<container>/created``, and how one is undone when its container goes.

Containers may share a rootfs.  A mount point that is removed takes the mounts of all of them with it, so what one container
has made is left to another one that still has the rootfs: its records move to that one's journal (they carry their time,
and undoing goes from the last to the first of all of them).
"""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError
from gpurun.linux.files import O_CLOEXEC, Fd, read_fd, read_file
from gpurun.linux.fs import O_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.ns.journal import Trace

_LIMIT = 256 << 20


def open_journal(root: str, container_id: str, rootfs: str) -> int:
    """Make the journal of a container that is being created and return it, opened for appending."""
    from gpurun.ns.journal import ROOTFS, append

    with Fd(_lock(root)):  # not while another container looks for whom it leaves its traces to
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_APPEND | O_CLOEXEC
        fd = posix.open(f"{root}/{container_id}/created", flags, 0o600)
        append(fd, ROOTFS, rootfs)
    return fd


def undo_traces(root: str, container_id: str, force: bool = False) -> tuple[str, ...]:
    """Take back what the journal of the container says, or leave it to another container of the same rootfs.

    The journal stays until all of it is done: raises :class:`GpurunError` with what the rootfs keeps, and :class:`OSError`;
    then this can be called again.  With *force*, what the kernel does not let us take away is told in the warnings that
    are returned, and no error.  Without a journal nothing is done, nor imported.
    """
    path = f"{root}/{container_id}/created"
    try:
        posix.stat(path)
    except FileNotFoundError:
        return ()
    from gpurun.ns.journal import ROOTFS, parse

    with Fd(_lock(root)):
        try:
            traces = parse(read_file(path, _LIMIT))
        except FileNotFoundError:
            return ()  # another delete was faster
        rootfs = next((trace.path for trace in traces if trace.kind == ROOTFS), "")
        traces = tuple([trace for trace in traces if trace.kind != ROOTFS])
        warnings: tuple[str, ...] = ()
        if traces and not _leave_to_another(root, container_id, rootfs, traces):
            warnings = _undo_in(rootfs, traces, force)
        posix.unlink(path)
        return warnings


def is_taken(root: str, journal: int) -> bool:
    """Whether a delete has taken back what the open *journal* said, and removed it; one that is at it is waited for."""
    with Fd(_lock(root)):
        return posix.fstat(journal).st_nlink == 0


def undo_after(root: str, container_id: str, size: int, journal: int) -> None:
    """Take back what the open *journal* says after its first *size* bytes, and forget it, while the container goes on, or
    when a delete has taken back what came before.

    Where another container has the rootfs it is left to whoever goes last.  Raises :class:`GpurunError`, :class:`OSError`.
    """
    from gpurun.ns.journal import ROOTFS, parse

    with Fd(_lock(root)):
        posix.lseek(journal, 0, 0)
        data = read_fd(journal, _LIMIT)
        traces = parse(data[size:])
        rootfs = next((trace.path for trace in parse(data) if trace.kind == ROOTFS), "")
        if not traces or any(_same_directory(theirs, rootfs) for theirs in _other_rootfs(root, container_id)):
            return
        _undo_in(rootfs, traces, True)
        if posix.fstat(journal).st_nlink:
            posix.ftruncate(journal, size)


def _other_rootfs(root: str, container_id: str) -> list[str]:
    """The rootfs of each other container with a journal."""
    from gpurun.ns.journal import ROOTFS, parse

    found = []
    for name in posix.listdir(root):
        if name.startswith(".") or name == container_id:
            continue
        try:
            data = read_file(f"{root}/{name}/created", _LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            continue
        found.append(next((trace.path for trace in parse(data) if trace.kind == ROOTFS), ""))
    return found


def _undo_in(rootfs: str, traces: tuple[Trace, ...], force: bool) -> tuple[str, ...]:
    from gpurun.ns.undo import undo

    try:
        root_fd = posix.open(rootfs, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ()  # the caller has taken the rootfs away already
    with Fd(root_fd):
        kept = undo(root_fd, traces)
    if any(not (force and one.refused) for one in kept):
        more = f" (and {len(kept) - 1} more)" if len(kept) > 1 else ""
        what = f"cannot take back what was made in the rootfs {rootfs} for this container: {kept[0]}{more}"
        raise GpurunError(f"{what}: delete it once more when that is mended")
    return tuple([f"the rootfs {rootfs} keeps {one.path}, made for this container: {one.reason}" for one in kept])


def _leave_to_another(root: str, container_id: str, rootfs: str, traces: tuple[Trace, ...]) -> bool:
    from gpurun.ns.journal import ROOTFS, append_all, parse

    for name in posix.listdir(root):
        if name.startswith(".") or name == container_id:
            continue
        try:
            data = read_file(f"{root}/{name}/created", _LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            continue  # no devices, or no container
        theirs = next((trace.path for trace in parse(data) if trace.kind == ROOTFS), "")
        if not _same_directory(theirs, rootfs):
            continue
        with Fd(posix.open(f"{root}/{name}/created", posix.O_WRONLY | posix.O_APPEND | O_CLOEXEC)) as fd:
            append_all(fd, traces)
        return True
    return False


def _same_directory(one: str, other: str) -> bool:
    try:
        a, b = posix.stat(one), posix.stat(other)
    except (FileNotFoundError, NotADirectoryError):
        return False  # gone: nothing in it can be shared
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def _lock(root: str) -> int:
    """The lock that orders the making and undoing of journals; closing it releases it."""
    import fcntl

    fd = posix.open(f"{root}/.created.lock", posix.O_RDWR | posix.O_CREAT | O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd
