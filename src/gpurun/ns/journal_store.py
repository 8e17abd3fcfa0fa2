"""Where the journal of a container is, ``<root>/<container>/created``, and how it is undone when the container goes.

That name is a link to a file that outlives the boot (:mod:`gpurun.ns.journal_disk`), or the journal itself where there is no
place for one.

Containers may share a rootfs.  A mount point that is removed takes the mounts of all of them with it, so what one container
has made is left to another one that still has the rootfs: its records move to that one's journal (they carry their time,
and undoing goes from the last to the first of all of them).
"""

from __future__ import annotations

import posix
from errno import EEXIST, EINVAL

from gpurun.errors import GpurunError, Stays, strerror_lower
from gpurun.linux.files import O_CLOEXEC, Fd, read_fd, read_file, write_all
from gpurun.linux.fs import O_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpurun.ns.journal import Trace
    from gpurun.ns.journal_disk import Earlier
    from gpurun.ns.undo import Kept

_LIMIT = 256 << 20
#: What a journal is called, beside where it was, once all of it has been taken back.
UNDONE = "undone"


def open_journal(root: str, container_id: str, rootfs: str) -> int:
    """Make the journal of a container that is being created and return it, opened for appending."""
    path = f"{root}/{container_id}/created"
    with Fd(_lock(root)):  # not while another container looks for whom it leaves its traces to
        _forget_lost(path)
        flags = posix.O_WRONLY | posix.O_APPEND | O_CLOEXEC
        fd = _open_on_disk(root, container_id, rootfs, path, flags)
        if fd < 0:
            fd = posix.open(path, flags | posix.O_CREAT | posix.O_EXCL, 0o600)
            write_all(fd, _header(rootfs, root, container_id))
    return fd


def _open_on_disk(root: str, container_id: str, rootfs: str, path: str, flags: int) -> int:
    """The journal at a place that outlives the boot, linked from *path*; -1 where there is none.

    The link comes first.  A create that is killed in between leaves one that leads to nothing, which goes with the state
    directory; a journal without a link would stay, for delete looks for the link.
    """
    from gpurun.ns.journal_disk import make_file, places

    for kept in places(root, container_id, rootfs):
        try:
            posix.symlink(kept, path)
        except OSError as e:
            if e.errno == EEXIST:
                raise
            return -1  # the error of the state root comes when the journal is made there
        fd = -1
        try:
            if make_file(kept):
                fd = posix.open(kept, flags)
                write_all(fd, _header(rootfs, root, container_id))
                return fd
        except OSError:
            if fd >= 0:
                posix.close(fd)
            _unlink(kept)  # a full disk: half a header would be no journal
        posix.unlink(path)
    return -1


def _unlink(path: str) -> None:
    try:
        posix.unlink(path)
    except OSError:
        pass  # it is empty, or half a header: the next create of this rootfs forgets it


def _header(rootfs: str, root: str, container_id: str) -> bytes:
    """The first record: the rootfs, and in its rest which directory that is, and whose journal this is."""
    from gpurun.ns.journal import ROOTFS, pack
    from gpurun.ns.journal_disk import identity

    try:
        with Fd(posix.open(rootfs, posix.O_PATH | O_DIRECTORY | O_CLOEXEC)) as fd:
            rest = f"{identity(fd)}\0{posix.readlink(f'/proc/self/fd/{fd}')}"
    except OSError:
        rest = "\0"
    return pack(ROOTFS, rootfs, rest.encode("utf-8", "surrogateescape"))


def _forget_lost(path: str) -> None:
    """Remove a link to a journal that is there no longer: another has undone it."""
    try:
        if posix.readlink(path) and not posix.access(path, posix.F_OK):
            posix.unlink(path)
    except OSError:
        pass  # no link


def undo_traces(root: str, container_id: str, force: bool = False, whole: bool = False) -> tuple[str, ...]:
    """Take back what the journal of the container says, or leave it to another container of the same rootfs.

    The journal stays until all of it is done: raises :class:`GpurunError` with what the rootfs keeps, and :class:`OSError`;
    then this can be called again.  With *force*, what the kernel does not let us take away is in the warnings that
    are returned, and no error.  Without a journal nothing is done, nor imported.

    *whole*: the container was created, so its journal must be whole.  Of one that is damaged what it still tells is taken
    back, only with *force*; a warning (:class:`Stays`) says that the rest is not.
    """
    path, undone = f"{root}/{container_id}/created", f"{root}/{container_id}/{UNDONE}"
    try:
        posix.stat(path)
    except FileNotFoundError:
        try:
            posix.lstat(undone)
        except FileNotFoundError:
            return _told_of_lost(path) if whole else ()
        with Fd(_lock(root)):
            return _forget(undone, force)  # an earlier call has come as far as that
    from gpurun.ns.journal import ROOTFS, is_whole, parse

    with Fd(_lock(root)):
        try:
            data = read_file(path, _LIMIT)
        except FileNotFoundError:
            return ()  # another delete was faster
        damaged = whole and not is_whole(data)
        if damaged and not force:
            raise GpurunError(f"{path}: the journal of what was made in the rootfs is damaged: delete --force removes it")
        traces = parse(data)
        rootfs, rest = next(((t.path, t.rest) for t in traces if t.kind == ROOTFS), ("", b""))
        traces = tuple([trace for trace in traces if trace.kind != ROOTFS])
        warnings: tuple[str, ...] = ()
        if traces and _still_it(path, rootfs, rest) and not _leave_to_another(root, container_id, rootfs, traces):
            warnings = _undo_in(rootfs, traces, force)
        posix.rename(path, undone)
        warnings = (*warnings, *_forget(undone, force))
        return (*warnings, _lost("is damaged", rootfs)) if damaged else warnings


def _told_of_lost(path: str) -> tuple[str, ...]:
    """What to say where *path* leads to no journal: nothing where there was none, or where the next create has undone what a
    stopped machine had left."""
    from gpurun.ns.journal_disk import is_of_this_boot

    try:
        return (_lost("is gone", ""),) if is_of_this_boot(posix.readlink(path)) else ()
    except OSError:
        return ()


def _lost(how: str, rootfs: str) -> Stays:
    image = f"the rootfs {rootfs}" if rootfs else "its rootfs"
    return Stays(f"the journal of what was made in {image} {how}, and what it no longer lists stays there")


def _still_it(path: str, rootfs: str, rest: bytes) -> bool:
    """Whether *rootfs* is the directory that a journal of an earlier boot tells of; one of this boot need not be asked."""
    from gpurun.ns.journal_disk import is_of_this_boot

    kept = _link_target(path)
    if not kept or is_of_this_boot(kept):
        return True
    try:
        with Fd(posix.open(rootfs, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)) as fd:
            return _is_it(fd, rest)
    except OSError:
        return False


def _link_target(path: str) -> str:
    """The journal that *path* links to; "" for one that lies in the state directory itself."""
    try:
        return posix.readlink(path)
    except OSError as e:
        if e.errno != EINVAL:
            raise
    return ""


def _is_it(rootfs_fd: int, rest: bytes) -> bool:
    from gpurun.ns.journal_disk import identity

    found = f"{identity(rootfs_fd)}\0{posix.readlink(f'/proc/self/fd/{rootfs_fd}')}"
    return found.encode("utf-8", "surrogateescape") == rest


def _forget(undone: str, force: bool) -> tuple[str, ...]:
    """Remove the journal *undone*, of which all has been taken back: what it links to first, so that a kill leaves a link.

    Where it stays that is a :class:`GpurunError`, and with *force* a warning; :func:`forget_orphan` removes it later.
    """
    from gpurun.ns.journal_disk import remove

    stays: tuple[str, ...] = ()
    kept = _link_target(undone)
    try:
        if kept:
            remove(kept)
    except FileNotFoundError:
        pass  # another has removed it
    except OSError as e:
        text = f"the journal {kept} of what was made in the rootfs cannot be removed: {strerror_lower(e.errno)}"
        if not force:
            raise GpurunError(f"{text}: delete it again when that is repaired") from None
        stays = (Stays(text),)
    posix.unlink(undone)
    return stays


def forget_orphan(root: str, container_id: str) -> None:
    """Remove the journal of this boot that a delete of the container could not remove, where there is no such container.

    What it tells of has been taken back.  Raises OSError where it stays.
    """
    from gpurun.ns.journal_disk import find_now, remove

    for path in find_now(root, container_id):
        with Fd(_lock(root)):  # which a create holds that makes its journal: its state directory is there by then
            if not posix.access(f"{root}/{container_id}", posix.F_OK):
                remove(path)


def undo_earlier_boots(rootfs: str, container: tuple[str, str] = ("", "")) -> tuple[str, ...]:
    """Take back what a machine that stopped has left in *rootfs*, or what its container (state root, id) has left anywhere;
    returns warnings of what stays, which is tried again the next time.

    A journal of another directory that had the path of *rootfs* is forgotten.  While a container of this boot has the
    rootfs nothing is done: its mounts would go.
    """
    from gpurun.ns import journal_disk

    key = journal_disk.rootfs_key(rootfs) if rootfs else ""
    owner = journal_disk.container_key(*container) if not rootfs else ""
    if not (key or owner) or not journal_disk.find_earlier(key, owner):
        return ()
    warnings: list[str] = []
    with Fd(journal_disk.lock()) as held:
        if held < 0:
            return ()
        if rootfs:
            by_boot: dict[str, list[Earlier]] = {}
            for journal in journal_disk.find_earlier(key):  # the newest first
                by_boot.setdefault(journal.folder, []).append(journal)
            if not journal_disk.is_in_use(key):
                for journals in by_boot.values():
                    warnings += _undo_boot(rootfs, journals, True)
        else:
            for journal in journal_disk.find_earlier("", owner):
                warnings += _undo_boot("", [journal], False)
        journal_disk.make_room()
    return tuple(warnings)


def _undo_boot(rootfs: str, journals: list[Earlier], forget_others: bool) -> list[str]:
    """Undo *journals* of one boot, together; *rootfs* "": that of the journal.  Returns warnings.

    One of another directory is forgotten, with *forget_others*, else left.
    """
    from gpurun.ns.journal import ROOTFS, Trace, parse
    from gpurun.ns.journal_disk import forget, is_in_use
    from gpurun.ns.undo import undo

    traces: list[Trace] = []
    done: list[Earlier] = []
    for journal in journals:
        found = parse(journal.data)
        first = next((trace for trace in found if trace.kind == ROOTFS), Trace(ROOTFS, 0, ""))
        where = rootfs or first.path
        try:
            with Fd(posix.open(where, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)) as fd:
                same = _is_it(fd, first.rest)
        except OSError:
            same = False
        if same and (rootfs or not is_in_use(journal.name.partition(".")[0])):
            traces += [trace for trace in found if trace.kind != ROOTFS]
            done.append(journal)
            rootfs = where
        elif not same and forget_others:
            forget(journal)
    if not done:
        return []
    kept: tuple[Kept, ...] = ()
    with Fd(posix.open(rootfs, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)) as fd:
        kept = undo(fd, tuple(sorted(traces, key=_stamp)))
    if kept:
        return [f"the rootfs {rootfs} keeps {one}, made before the machine was started again: {one.reason}" for one in kept]
    for journal in done:
        forget(journal)
    return []


def _stamp(trace: Trace) -> int:
    return trace.stamp


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
        traces = tuple([trace for trace in parse(data[size:]) if trace.kind != ROOTFS])
        rootfs = next((trace.path for trace in parse(data) if trace.kind == ROOTFS), "")
        if not traces or any(_others(root, container_id, rootfs)):
            return
        _undo_in(rootfs, traces, True)
        if posix.fstat(journal).st_nlink:
            posix.ftruncate(journal, size)


def _others(root: str, container_id: str, rootfs: str) -> Iterator[str]:
    """The journal of each other container that has *rootfs*."""
    from gpurun.ns.journal import ROOTFS, parse

    for name in posix.listdir(root):
        if name.startswith(".") or name == container_id:
            continue
        try:
            data = read_file(f"{root}/{name}/created", _LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            continue  # no devices, or no container
        theirs = next((trace.path for trace in parse(data) if trace.kind == ROOTFS), "")
        if _same_directory(theirs, rootfs):
            yield f"{root}/{name}/created"


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
        raise GpurunError(f"{what}: delete it again when that is repaired")
    return tuple([f"the rootfs {rootfs} keeps {one.path}, made for this container: {one.reason}" for one in kept])


def _leave_to_another(root: str, container_id: str, rootfs: str, traces: tuple[Trace, ...]) -> bool:
    from gpurun.ns.journal import append_all

    for theirs in _others(root, container_id, rootfs):
        with Fd(posix.open(theirs, posix.O_WRONLY | posix.O_APPEND | O_CLOEXEC)) as fd:
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
