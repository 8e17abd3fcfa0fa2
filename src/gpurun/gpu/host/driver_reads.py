"""Attributes of sysfs for which the driver asks the device, or waits for a lock of its own: the answer may never come.

Copies of this process read them, in a process group and with descriptors of their own.  What has not answered in time is
given up: who waits in the kernel for a driver cannot be killed, is left behind, and nothing waits for it.  One copy reads
the files of all devices, as they nearly always answer at once; if one does not, each device's are read by a copy of their
own.

What is known of such files is not kept for later (:mod:`gpurun.gpu.host.facts`): to compare it would be to read them.
"""

from __future__ import annotations

import posix
import select
import time

from gpurun.gpu.host import helper
from gpurun.gpu.host.reads import read_attribute
from gpurun.linux.files import CHUNK, O_CLOEXEC, Fd, write_all
from gpurun.linux.fs import close_range

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

#: Seconds for an answer: of all devices together at first, and in all.
_FIRST_S, LIMIT_S = 1.0, 3.0
#: Seconds for which this process does not ask a device again that has not answered.
_RETRY_S = 60.0
_TEXT = 64  # bytes of a value
#: The first file of a device → until when (monotonic clock) it is not asked again.
_until: dict[str, float] = {}
#: Path → what it said when it last answered this process.
_last: dict[str, str] = {}


def read_in_time(devices: Sequence[tuple[str, ...]]) -> dict[str, str]:
    """Path → text, as :func:`gpurun.gpu.host.reads.read_attribute` has it; *devices* are the paths of the files of each.

    A file that has not answered within LIMIT_S seconds is left out; :func:`last_told` may know it.  Raises OSError where no
    process can be made.
    """
    deadline = time.monotonic() + LIMIT_S
    asked = [paths for paths in devices if paths and not _is_given_up(paths[0])]
    if not asked:
        return {}
    found = _read([tuple([path for paths in asked for path in paths])], min(time.monotonic() + _FIRST_S, deadline))
    rest = [paths for paths in asked if not found.keys() >= {*paths}]
    if rest:
        found |= _read(rest, deadline)
    for paths in rest:
        if not found.keys() >= {*paths}:
            _until[paths[0]] = time.monotonic() + _RETRY_S
    _last.update(found)
    return found


def last_told(path: str) -> str:
    """What *path* said when it last answered this process; empty where it never has."""
    return _last.get(path, "")


def silence(path: str) -> str:
    """That a driver has not answered when *path* was read, as a sentence goes on."""
    return f"its driver has not answered within {LIMIT_S:g} s ({path}): it hangs or is very slow; `dmesg` says more"


def _is_given_up(path: str) -> bool:
    until = _until.get(path)
    if until is None:
        return False
    if time.monotonic() < until or helper.is_held(path):
        return True
    del _until[path]
    return False


def _read(devices: Sequence[tuple[str, ...]], deadline: float) -> dict[str, str]:
    """The answers until *deadline*, by one process for each of *devices*."""
    started: list[tuple[int, int, tuple[str, ...]]] = []
    found: dict[str, str] = {}
    try:
        for paths in devices:
            started.append((*_start(paths), paths))
        for _, fd, paths in started:
            found |= _read_answer(fd, paths, deadline)
    finally:
        for _, fd, _ in started:
            posix.close(fd)
        for pid, _, paths in started:
            helper.finish(pid, deadline, paths[0])
    return found


def _start(paths: tuple[str, ...]) -> tuple[int, int]:
    receive, send = posix.pipe2(O_CLOEXEC)
    with Fd(send):
        try:
            pid = posix.fork()
        except OSError:
            posix.close(receive)
            raise
        if pid == 0:
            _answer(send, paths)
    return pid, receive


def _answer(send: int, paths: tuple[str, ...]) -> NoReturn:
    """The copy: it writes the number of each path, and what that says.  It holds nothing open that its caller has."""
    try:
        posix.setpgid(0, 0)
        if send != 3:
            posix.dup2(send, 3)
        null = posix.open("/dev/null", posix.O_RDWR)
        for number in (0, 1, 2):
            posix.dup2(null, number)
        close_range(4)
        for number, path in enumerate(paths):
            write_all(3, f"{number} {read_attribute(path, _TEXT)}".replace("\0", "").encode() + b"\0")
    finally:
        posix._exit(0)


def _read_answer(fd: int, paths: tuple[str, ...], deadline: float) -> dict[str, str]:
    """What the copy at *fd* has written until its end, or until *deadline*."""
    data = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    while poll.poll(max(deadline - time.monotonic(), 0) * 1000):
        chunk = posix.read(fd, CHUNK)
        if not chunk:
            break
        data += chunk
    lines = [line.decode().partition(" ") for line in data.split(b"\0")[:-1]]
    return {paths[int(number)]: text for number, _, text in lines}
