"""Installing on the node and taking it back: the steps, in their order.  They run with the node's root (:mod:`.host`).

Each step can be done twice, and the node's own note says before each what is going to be there: whoever comes after an
installer that was killed goes on, or takes it back.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
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
from gpurun.kubernetes.install.node_setup import NO_ENGINE, RECORD, Installed, NodeSetup, read_installed, write_installed
from gpurun.kubernetes.install.program import containers_of, put_program, remove_program
from gpurun.kubernetes.install.restart import restart
from gpurun.record import replace

_LOCK = "/run/gpurun-node-install.lock"
#: The node's gpurun where no installer has put one.
_PACKAGES = "/usr/bin/gpurun"
#: Seconds for which a new installer waits for one whose pod ends: that waits for containers, and for the engine.
_OTHER_S = 90.0
_PAUSE_S = 0.2
_MOST = 50  # of the text that comes back through a pipe


def install(setup: NodeSetup, source: int) -> str:
    """Have the node as *setup* says, with the program of the descriptor *source*; what was done, in words.

    Raises :class:`GpurunError`; an engine that does not come back with the new configuration gets its old one again.
    """
    with _install_lock(_OTHER_S):
        _remove_strays()
        before = read_installed()
        if before is not None and (before.removing or not _same_place(before.setup, setup)):
            _remove(before)
            before = None
        note = Installed(setup, before is not None and before.restart)
        write_installed(note)
        _remove_strays_of(setup)
        done = [f"{setup.program} is new"] if put_program(source, setup.program) else []
        changes = () if setup.engine == NO_ENGINE else plan_install(setup.client())
        if changes:
            note = replace(note, restart=True)
            write_installed(note)
            apply_all(setup.client(), changes)
            done += [f"{change.path} is written" for change in changes]
        if note.restart:
            _restart(setup, changes)
            write_installed(replace(note, restart=False))
            done.append(f"{setup.engine} knows {setup.name}")
        return "; ".join(done) or (
            f"{setup.engine} knows {setup.name} already" if setup.engine != NO_ENGINE else "it is there"
        )


def remove(wait_s: float = 0.0) -> str:
    """Take back what the node's note says is there; what was done, in words.  Raises :class:`GpurunError`.

    *wait_s*: for how many seconds containers that are ending may still need the program.
    """
    with _install_lock():
        _remove_strays()
        before = read_installed()
        deadline = time.monotonic() + wait_s
        while before is not None and containers_of(before.setup.program) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        return _remove(before) if before is not None else "nothing of gpurun is installed on this node"


def take_back(places: Leavings) -> str:
    """Take back all that gpurun has brought onto this node, by whichever of its parts.

    Returns a JSON object: ``done``, what was done, and ``left``, why something is still there; then look again later.
    """
    check_places(places)
    done: list[str] = []
    left: list[str] = []
    with _install_lock():
        _remove_strays()
        before = read_installed()
        if before is not None:
            done.append(_remove(before))
            users = containers_of(before.setup.program)
            if users:
                left.append(
                    f"{before.setup.program} is needed by {len(users)} containers until they end: {', '.join(users[:5])}"
                )
        parts = running_parts(places)
        if before is None and not parts:
            left += end_all(MPS_ROOT, NodeProgram((_PACKAGES,)))
            _remove_empty(os.path.dirname(MPS_ROOT))
        left += [f"{part} still runs on this node" for part in parts]
        done += [] if parts else [f"{path} is gone" for path in remove_leavings(places)]
    more = [f"and {len(done) - _MOST} more"] if len(done) > _MOST else []
    return json.dumps({"done": done[:_MOST] + more, "left": left})


def _remove(before: Installed) -> str:
    setup = before.setup
    _check_drop_in(setup)
    note = replace(before, removing=True)
    write_installed(note)
    _remove_strays_of(setup)
    client = setup.client()
    changes = () if setup.engine == NO_ENGINE or before.engine_as_before else plan_uninstall(client)
    done = []
    if changes:
        note = replace(note, restart=True)
        write_installed(note)
        apply_all(client, changes)
        done += [f"{change.path} is {'gone' if change.text is None else 'as before'}" for change in changes]
    # When this comes again, for a container that needs the program, a runtime of that name is one that the node had before.
    note = replace(note, engine_as_before=True)
    write_installed(note)
    if setup.config:
        files.forget_kept(setup.config)
    if note.restart:
        restart(setup.engine, setup.restart, setup.socket)
        write_installed(replace(note, restart=False))
    # MPS daemons of pods are no pod's: whoever has started them need not be there any more.
    for problem in end_all(MPS_ROOT, NodeProgram((setup.program,))):
        log.warning(problem)
    _remove_empty(os.path.dirname(MPS_ROOT))
    users = remove_program(setup.program, setup.directory)
    if users:
        # The note stays, so that the next one to come, or another removal, looks again.
        log.warning(
            f"{setup.program} is not removed: {len(users)} containers need it until they end: {', '.join(users[:5])}"
        )
        return "; ".join([*done, f"{setup.program} stays for {len(users)} containers"])
    os.unlink(RECORD)
    _remove_empty(os.path.dirname(RECORD))
    return "; ".join([*done, f"{setup.program} is gone"])


def _check_drop_in(setup: NodeSetup) -> None:
    """Raise :class:`GpurunError` unless the file that is to go is one that names our program."""
    there = files.read(setup.drop_in) if setup.engine == "containerd" and setup.drop_in else None
    if there is not None and setup.program not in there:
        raise GpurunError(
            f"{RECORD} names {setup.drop_in}, which does not name {setup.program} and is not removed; nothing is changed: "
            f"look at it, and remove {RECORD}"
        )


def _restart(setup: NodeSetup, changes: tuple[Change, ...]) -> None:
    try:
        restart(setup.engine, setup.restart, setup.socket)
    except GpurunError as e:
        if not changes:
            raise
        for change in reversed(changes):
            files.take_back(change)
        raise GpurunError(f"{e}; its configuration is as it was before") from None


def _same_place(old: NodeSetup, new: NodeSetup) -> bool:
    """Whether nothing that *old* has written is left when *new* has been."""
    places = ("engine", "directory", "name", "config", "drop_in", "default", "cdi")
    return all(getattr(old, place) == getattr(new, place) for place in places)


@contextmanager
def _install_lock(wait_s: float = 0.0) -> Iterator[None]:
    """One installer at a time.  Raises :class:`GpurunError` when another one still works here after *wait_s* seconds."""
    try:
        fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise GpurunError(f"{_LOCK}: {strerror_lower(e.errno or 0)}") from None
    try:
        if not _locked(fd) and wait_s:
            log.info("another installer is running on this node: waiting until it has finished")
        deadline = time.monotonic() + wait_s
        while not _locked(fd):
            if time.monotonic() >= deadline:
                raise GpurunError("another installer is running on this node: wait until it has finished")
            time.sleep(_PAUSE_S)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    """Whether the lock of *fd* is ours."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_strays() -> None:
    files.remove_strays(RECORD)


def _remove_strays_of(setup: NodeSetup) -> None:
    """What an installer that was killed has left beside the files that it was writing."""
    of_engine = (setup.config, setup.config + files.KEPT, setup.drop_in) if setup.engine != NO_ENGINE else ()
    for path in (setup.program, *of_engine):
        files.remove_strays(path)


def _remove_empty(directory: str) -> None:
    try:
        os.rmdir(directory)
    except OSError:  # not empty
        pass
