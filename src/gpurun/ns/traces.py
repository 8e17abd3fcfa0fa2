"""Where journals are kept, ``<root>/<container>/created``, and how one is undone when its container goes.

Containers may share a rootfs.  A mount point that is removed takes the mounts of all of them with it, so what one container
has made is left to another one that still has the rootfs: its records move to that one's journal (they carry their time,
and undoing goes from the last to the first of all of them).
"""

from __future__ import annotations

import posix

from gpurun.linux.files import O_CLOEXEC, read_file
from gpurun.linux.fs import O_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.ns.journal import Trace

_LIMIT = 256 << 20


def open_journal(root: str, container_id: str, rootfs: str) -> int:
    """Make the journal of a container that is being created and return it, opened for appending."""
    from gpurun.ns.journal import ROOTFS, append

    lock = _lock(root)  # not while another container looks for whom it leaves its traces to
    try:
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_APPEND | O_CLOEXEC
        fd = posix.open(f"{root}/{container_id}/created", flags, 0o600)
        append(fd, ROOTFS, rootfs)
    finally:
        posix.close(lock)
    return fd


def undo_traces(root: str, container_id: str) -> tuple[str, ...]:
    """Take back what the journal of the container says, or leave it to another container of the same rootfs.

    Returns warnings.  Without a journal nothing is done, nor imported.
    """
    path = f"{root}/{container_id}/created"
    try:
        posix.stat(path)
    except FileNotFoundError:
        return ()
    from gpurun.ns.journal import ROOTFS, parse
    from gpurun.ns.undo import undo

    lock = _lock(root)
    try:
        traces = parse(read_file(path, _LIMIT))
        rootfs = next((trace.path for trace in traces if trace.kind == ROOTFS), "")
        traces = tuple([trace for trace in traces if trace.kind != ROOTFS])
        if traces and not _leave_to_another(root, container_id, rootfs, traces):
            try:
                root_fd = posix.open(rootfs, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return ()  # the caller has taken the rootfs away already
            try:
                return undo(root_fd, traces)
            finally:
                posix.close(root_fd)
        return ()
    finally:
        try:
            posix.unlink(path)
        except FileNotFoundError:
            pass  # another delete was faster
        posix.close(lock)


def _leave_to_another(root: str, container_id: str, rootfs: str, traces: tuple[Trace, ...]) -> bool:
    from gpurun.ns.journal import ROOTFS, append, parse

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
        fd = posix.open(f"{root}/{name}/created", posix.O_WRONLY | posix.O_APPEND | O_CLOEXEC)
        try:
            for trace in traces:
                append(fd, trace.kind, trace.path, trace.rest, trace.stamp)
        finally:
            posix.close(fd)
        return True
    return False


def _same_directory(one: str, other: str) -> bool:
    try:
        a, b = posix.stat(one), posix.stat(other)
    except OSError:
        return False  # gone: nothing in it can be shared
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def _lock(root: str) -> int:
    """The lock that orders the making and undoing of journals; closing it releases it."""
    import fcntl

    fd = posix.open(f"{root}/.created.lock", posix.O_RDWR | posix.O_CREAT | O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd
