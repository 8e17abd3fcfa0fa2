"""Who waits for GPUs, in order of arrival: a file for each in the store's directory, void once its process is gone.

The file ``waiting.NUMBER`` has words: pid, start time, how many GPUs, ``nvlink`` or ``-``, the keys of those that would do.
"""

from __future__ import annotations

import posix
from errno import EINVAL

from gpurun import log
from gpurun.decimals import decimal
from gpurun.errors import StepError, oserror_text
from gpurun.gpu.leases.liveness import lives
from gpurun.gpu.leases.turns import Want
from gpurun.linux.files import read_regular, unlink_if_there, write_atomically
from gpurun.record import Record

_PREFIX = "waiting."
_LIMIT = 1 << 16
_DIGITS = 18


class Ticket(Record):
    """A process that waits, and what for; *number* says when it came."""

    number: int
    pid: int
    start_time: int
    want: Want


def draw(directory: str, pid: int, start_time: int, want: Want) -> Ticket:
    """Stand at the end of the queue.  The lock is held.  Raises :class:`StepError`."""
    try:
        # A name that is no ticket (a directory) is not written over.
        number = max(_numbers(directory), default=0) + 1
        text = " ".join([str(pid), str(start_time), str(want.count), "nvlink" if want.nvlink else "-", *sorted(want.keys)])
        write_atomically(f"{directory}/{_PREFIX}{number}", text.encode(), 0o644)
    except OSError as e:
        raise StepError("wait for GPUs in", directory, e.errno) from None
    return Ticket(number, pid, start_time, want)


def leave(directory: str, ticket: Ticket) -> None:
    """Stand in the queue no longer.  The lock is held; where that cannot be had, it is done without."""
    unlink_if_there(f"{directory}/{_PREFIX}{ticket.number}")


def tickets(directory: str, tidy: bool = True) -> tuple[Ticket, ...]:
    """Who waits, in their order; with *tidy*, and the lock, what those have left who are gone is removed.

    What is no ticket is left as it is and does not count.  Raises :class:`StepError`.
    """
    found = []
    try:
        for number in sorted(_numbers(directory)):
            ticket = _ticket(f"{directory}/{_PREFIX}{number}", number)
            if ticket is not None and lives(ticket.pid, ticket.start_time):
                found.append(ticket)
            elif ticket is not None and tidy:
                unlink_if_there(f"{directory}/{_PREFIX}{number}")
    except FileNotFoundError:
        return ()  # nothing has been leased since this host booted
    except OSError as e:
        raise StepError("read who waits for GPUs in", directory, e.errno) from None
    return tuple(found)


def ahead(directory: str, keys: frozenset[str], own: Ticket | None) -> tuple[Ticket, ...]:
    """The tickets before *own* (None: before a new request) that want one of *keys*.  The lock is held."""
    return tuple([t for t in tickets(directory) if (own is None or t.number < own.number) and t.want.keys & keys])


def _numbers(directory: str) -> list[int]:
    names = [name.removeprefix(_PREFIX) for name in posix.listdir(directory) if name.startswith(_PREFIX)]
    return [int(name) for name in names if name.isdecimal() and name.isascii() and len(name) <= _DIGITS]


def _ticket(path: str, number: int) -> Ticket | None:
    """The ticket in the file *path*; None if it is not a ticket, or has gone.  Raises OSError."""
    try:
        words = read_regular(path, _LIMIT, follow=False).decode("utf-8", "replace").split()
    except FileNotFoundError:
        return None  # who waited has its GPUs, or has given up
    except OSError as e:
        if isinstance(e, IsADirectoryError) or e.errno == EINVAL:
            log.warning(f"{oserror_text(e)}: it is not in the queue for GPUs: remove it")
            return None
        raise
    pid, start = [decimal(word) for word in (words + ["", ""])[:2]]
    count = decimal(words[2]) if len(words) > 2 else None
    keys = words[4:] if count is not None else words[2:]  # an earlier version wrote no more than the keys
    nvlink = count is not None and words[3:4] == ["nvlink"]
    return Ticket(number, pid or 0, start or 0, Want(frozenset(keys), count if count is not None else 1, nvlink))
