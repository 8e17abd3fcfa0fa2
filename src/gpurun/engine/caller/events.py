"""events: what a container uses, time and again, and when the kernel kills in it for want of memory."""

from __future__ import annotations

import posix
import time

from gpurun import log
from gpurun.cgroup import control
from gpurun.cgroup.stats import read_stats
from gpurun.cgroup.tree import hugepage_sizes
from gpurun.engine import kept
from gpurun.engine import state as store
from gpurun.engine.caller.oom import how_memory_ended
from gpurun.errors import GpurunError
from gpurun.formats.jsontext import dumps
from gpurun.linux.files import O_CLOEXEC, read_fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpurun.gpu.usage import GpuUsage

#: Go's time.ParseDuration: units and their length in nanoseconds.
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


def parse_duration(text: str) -> float:
    """Seconds of a duration like ``5s``, ``100ms``, ``1m30s``, ``1.5h``; it must be longer than none.

    Raises :class:`GpurunError` for any other text.
    """
    rest, total = text, 0
    while rest:
        length = len(rest) - len(rest.lstrip("0123456789."))
        number, rest = rest[:length], rest[length:]
        length = next((i for i, c in enumerate(rest) if c in "0123456789."), len(rest))
        unit, rest = rest[:length], rest[length:]
        whole, _, fraction = number.partition(".")
        if unit not in _UNITS or not (whole + fraction).isdigit() or "." in fraction or len(number) > 20:
            raise GpurunError(f'invalid duration "{text}", write it like 5s, 100ms or 1m30s')
        total += int(whole or 0) * _UNITS[unit] + int(fraction or 0) * _UNITS[unit] // 10 ** len(fraction)
    if total <= 0:
        raise GpurunError("duration interval must be greater than 0")
    return total / 10**9


def _running(root: str, container_id: str) -> store.State:
    state = store.load(root, container_id)
    if store.status(root, state) == "stopped":
        raise GpurunError(f"container with id {container_id} is not running")
    return state


class Gpus:
    """The use of a container's GPUs; a driver that fails costs its numbers, and not the report."""

    def __init__(self, root: str, state: store.State) -> None:
        self._given = kept.load_given(root, state.id)
        self._cgroup = state.cgroup
        self._usage: GpuUsage | None = None

    def read(self) -> dict[str, Any]:
        """The member ``gpus`` for a report; none for a container without GPUs, or a driver that does not tell."""
        if not self._given:
            return {}
        from gpurun.engine.gpus.device_edits import own_environment
        from gpurun.gpu.usage import GpuUsage

        if self._usage is None:
            self._usage = GpuUsage(own_environment(), log.warning)
        rows = self._usage.look(self._given).rows(self._given, control.processes(self._cgroup))
        return {} if rows is None else {"gpus": rows}


def stats_event(state: store.State, gpus: Gpus) -> str:
    """One line: the event with what the container uses now; raises OSError when its cgroup is gone."""
    return event("stats", state.id, {**read_stats(state.cgroup, hugepage_sizes()), **gpus.read()})


def event(kind: str, container_id: str, data: Any = None) -> str:
    """One line of JSON."""
    document = {"type": kind, "id": container_id}
    return dumps({**document, "data": data} if data is not None else document) + "\n"


def print_stats(root: str, container_id: str, write: Callable[[str], None]) -> None:
    """One report; raises :class:`GpurunError` when the container does not run."""
    state = _running(root, container_id)
    write(stats_event(state, Gpus(root, state)))


def follow(root: str, container_id: str, interval: float, write: Callable[[str], None]) -> None:
    """Reports every *interval* seconds, and each OOM kill as it happens, until no process of the container is left.

    The kernel tells of changes in both files by poll(2), so nothing is missed between two reports.  Raises
    :class:`GpurunError` for a container that does not run.
    """
    from select import POLLPRI, poll

    state = _running(root, container_id)
    gpus = Gpus(root, state)
    populated = _open(f"{state.cgroup}/cgroup.events")
    memory = _open(f"{state.cgroup}/memory.events")
    try:
        if populated < 0:
            raise GpurunError(f"container with id {container_id} is not running")
        poller = poll()
        poller.register(populated, POLLPRI)
        if memory >= 0:
            poller.register(memory, POLLPRI)
        kills = _field(memory, "oom_kill")
        due = time.monotonic() + interval
        while _field(populated, "populated"):
            ready = dict(poller.poll(max(0.0, due - time.monotonic()) * 1000))
            if memory in ready:
                kills = _tell_kills(container_id, kills, _field(memory, "oom_kill"), write)
            if time.monotonic() >= due:
                try:
                    write(stats_event(state, gpus))
                except OSError:
                    break  # removed just now
                due = time.monotonic() + interval
        count = _field(memory, "oom_kill")
        if memory >= 0 and not control.exists(state.cgroup):  # perhaps before we came to read its counters
            facts = how_memory_ended(state)
            count = max(count, facts["kills"] or 1 if facts else 0)
        _tell_kills(container_id, kills, count, write)
    finally:
        for fd in (populated, memory):
            if fd >= 0:
                posix.close(fd)


def _tell_kills(container_id: str, reported: int, count: int, write: Callable[[str], None]) -> int:
    """Write the kills of *count* that have not been *reported*; returns how many are now."""
    for _ in range(count - reported):
        write(event("oom", container_id))
    return max(reported, count)


def _open(path: str) -> int:
    try:
        return posix.open(path, posix.O_RDONLY | posix.O_NOFOLLOW | O_CLOEXEC)
    except FileNotFoundError:
        return -1  # the cgroup is gone, or there is no memory controller


def _field(fd: int, name: str) -> int:
    """The number of *name* in the flat keyed file *fd*; 0 when there is none, or the cgroup is gone."""
    if fd < 0:
        return 0
    try:
        posix.lseek(fd, 0, 0)
        text = read_fd(fd, 4096).decode()
    except OSError:
        return 0
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
