"""Which processes of a container have a device open, when it is to be taken away."""

from __future__ import annotations

import posix
import time
from errno import EACCES, ENOENT, EPERM, ESRCH

from gpurun.errors import GpuError, StepError, clean
from gpurun.gpu.leases.container_nodes import command_of
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.cdi.edits import DeviceNode

_SIGKILL = 9
_END_S = 10.0
#: It has ended, or is another user's, which those without root cannot look at.
_NOT_SEEN = (ENOENT, ESRCH, EACCES, EPERM)


class Opener(Record):
    """A process of the container that has a device open."""

    pid: int
    command: str
    path: str


def check_unused(processes: Callable[[], tuple[int, ...]], nodes: tuple[DeviceNode, ...], force: bool) -> None:
    """Raise :class:`GpuError` while one of *processes* has one of *nodes* open; with *force* end those that do."""
    numbers = {posix.makedev(node.major, node.minor): node.path for node in nodes}
    deadline = time.monotonic() + _END_S
    while found := openers(processes(), numbers):
        listed = ", ".join([f"process {one.pid} ({clean(one.command)}) has {one.path} open" for one in found])
        if not force:
            raise GpuError(f"{listed}: end it, or detach with --force")
        if time.monotonic() > deadline:
            raise GpuError(f"{listed}, and does not end: the driver holds it in the kernel")
        for one in found:
            try:
                posix.kill(one.pid, _SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)


def openers(processes: tuple[int, ...], numbers: dict[int, str]) -> tuple[Opener, ...]:
    """Those of *processes* that have a device with one of *numbers* (as st_rdev; the name to tell) open or mapped.

    Raises :class:`StepError` where that cannot be seen (no descriptor is left, for one).
    """
    found = []
    for pid in processes:
        try:
            names = posix.listdir(f"/proc/{pid}/fd")
        except OSError as e:
            if e.errno in _NOT_SEEN:
                continue
            raise StepError("see what the process has open:", str(pid), e.errno) from None
        opened = [f"/proc/{pid}/fd/{name}" for name in names]
        try:
            opened += [f"/proc/{pid}/map_files/{name}" for name in posix.listdir(f"/proc/{pid}/map_files")]
        except OSError:
            pass  # not for everybody to see: a device that is mapped is nearly always open too
        for path in opened:
            try:
                number = posix.stat(path).st_rdev
            except OSError:
                continue  # closed meanwhile
            if number in numbers:
                found.append(Opener(pid, command_of(pid) or "?", numbers[number]))
                break
    return tuple(found)
