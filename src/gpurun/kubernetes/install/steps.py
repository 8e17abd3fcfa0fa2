"""Installing on the node and taking it back: the steps, in their order.  They run with the node's root (:mod:`.host`).

Each step can be done twice, and the node's own note says before each what is going to be there: whoever comes after an
installer that was killed goes on, or takes it back.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gpurun import log
from gpurun.clients import files
from gpurun.clients.apply import apply_all
from gpurun.clients.files import Change
from gpurun.clients.install import plan_install, plan_uninstall
from gpurun.errors import GpurunError, strerror_lower
from gpurun.gpu.nvidia.mps.node_service import MPS_ROOT, NodeProgram, end_all
from gpurun.kubernetes.install.leavings import Leavings, check_places, remove_leavings, running_parts
from gpurun.kubernetes.install.program import containers_of, put_program, remove_program
from gpurun.kubernetes.install.restart import restart
from gpurun.kubernetes.install.wish import NO_ENGINE, RECORD, Installed, NodeWish, read_installed, write_installed
from gpurun.record import replace

_LOCK = "/run/gpurun-node-install.lock"
#: The node's gpurun where no installer has put one.
_PACKAGES = "/usr/bin/gpurun"
_MOST = 50  # of what is told: it comes back through a pipe


def install(wish: NodeWish, source: int) -> str:
    """Have the node as *wish* says, with the program of the descriptor *source*; what was done, in words.

    Raises :class:`GpurunError`; an engine that does not come back with the new configuration gets its old one again.
    """
    with _alone():
        _remove_strays()
        before = read_installed()
        if before is not None and (before.removing or not _same_place(before.wish, wish)):
            _remove(before)
            before = None
        note = Installed(wish, before is not None and before.restart)
        write_installed(note)
        _remove_strays_of(wish)
        told = [f"{wish.program} is new"] if put_program(source, wish.program) else []
        changes = () if wish.engine == NO_ENGINE else plan_install(wish.client())
        if changes:
            note = replace(note, restart=True)
            write_installed(note)
            apply_all(wish.client(), changes)
            told += [f"{change.path} is written" for change in changes]
        if note.restart:
            _restart(wish, changes)
            write_installed(replace(note, restart=False))
            told.append(f"{wish.engine} knows {wish.name}")
        return "; ".join(told) or (f"{wish.engine} knows {wish.name} already" if wish.engine != NO_ENGINE else "it is there")


def remove() -> str:
    """Take back what the node's note says is there; what was done, in words.  Raises :class:`GpurunError`."""
    with _alone():
        _remove_strays()
        before = read_installed()
        return _remove(before) if before is not None else "nothing of gpurun is installed on this node"


def take_back(places: Leavings) -> str:
    """Take back all that gpurun has brought onto this node, by whichever of its parts.

    Returns a JSON object: ``told``, what was done, and ``left``, why something is still there; then look again later.
    """
    check_places(places)
    told: list[str] = []
    left: list[str] = []
    with _alone():
        _remove_strays()
        before = read_installed()
        if before is not None:
            told.append(_remove(before))
            users = containers_of(before.wish.program)
            if users:
                left.append(
                    f"{before.wish.program} is needed by {len(users)} containers until they end: {', '.join(users[:5])}"
                )
        parts = running_parts(places)
        if before is None and not parts:
            left += end_all(MPS_ROOT, NodeProgram((_PACKAGES,)))
            _remove_empty(os.path.dirname(MPS_ROOT))
        left += [f"{part} still runs on this node" for part in parts]
        told += [] if parts else [f"{path} is gone" for path in remove_leavings(places)]
    more = [f"and {len(told) - _MOST} more"] if len(told) > _MOST else []
    return json.dumps({"told": told[:_MOST] + more, "left": left})


def _remove(before: Installed) -> str:
    wish = before.wish
    _check_drop_in(wish)
    note = replace(before, removing=True)
    write_installed(note)
    _remove_strays_of(wish)
    client = wish.client()
    changes = () if wish.engine == NO_ENGINE else plan_uninstall(client)
    told = []
    if changes:
        note = replace(note, restart=True)
        write_installed(note)
        apply_all(client, changes)
        told += [f"{change.path} is {'gone' if change.text is None else 'as before'}" for change in changes]
    if wish.config:
        files.forget_kept(wish.config)
    if note.restart:
        restart(wish.engine, wish.restart, wish.socket)
        write_installed(replace(note, restart=False))
    # MPS daemons of pods are no pod's: whoever has started them need not be there any more.
    for problem in end_all(MPS_ROOT, NodeProgram((wish.program,))):
        log.warning(problem)
    _remove_empty(os.path.dirname(MPS_ROOT))
    users = remove_program(wish.program, wish.directory)
    if users:
        # The note stays, so that the next one to come, or another removal, looks again.
        log.warning(f"{wish.program} is not removed: {len(users)} containers need it until they end: {', '.join(users[:5])}")
        return "; ".join([*told, f"{wish.program} stays for {len(users)} containers"])
    os.unlink(RECORD)
    _remove_empty(os.path.dirname(RECORD))
    return "; ".join([*told, f"{wish.program} is gone"])


def _check_drop_in(wish: NodeWish) -> None:
    """Raise :class:`GpurunError` unless the file that is to go is one that names our program."""
    there = files.read(wish.drop_in) if wish.engine == "containerd" and wish.drop_in else None
    if there is not None and wish.program not in there:
        raise GpurunError(
            f"{RECORD} names {wish.drop_in}, which does not name {wish.program} and is not removed; nothing is changed: "
            f"look at it, and remove {RECORD}"
        )


def _restart(wish: NodeWish, changes: tuple[Change, ...]) -> None:
    try:
        restart(wish.engine, wish.restart, wish.socket)
    except GpurunError as e:
        if not changes:
            raise
        for change in reversed(changes):
            files.take_back(change)
        raise GpurunError(f"{e}; its configuration is as it was before") from None


def _same_place(old: NodeWish, new: NodeWish) -> bool:
    """Whether nothing that *old* has written is left when *new* has been."""
    places = ("engine", "directory", "name", "config", "drop_in", "default", "cdi")
    return all(getattr(old, place) == getattr(new, place) for place in places)


@contextmanager
def _alone() -> Iterator[None]:
    """One installer at a time.  Raises :class:`GpurunError` when another one works here."""
    try:
        fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise GpurunError(f"{_LOCK}: {strerror_lower(e.errno or 0)}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise GpurunError("another installer is running on this node: wait until it has finished") from None
    finally:
        os.close(fd)


def _remove_strays() -> None:
    files.remove_strays(RECORD)


def _remove_strays_of(wish: NodeWish) -> None:
    """What an installer that was killed has left beside the files that it was writing."""
    of_engine = (wish.config, wish.config + files.KEPT, wish.drop_in) if wish.engine != NO_ENGINE else ()
    for path in (wish.program, *of_engine):
        files.remove_strays(path)


def _remove_empty(directory: str) -> None:
    try:
        os.rmdir(directory)
    except OSError:  # not empty
        pass
