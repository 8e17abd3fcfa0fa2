"""Who waits for GPUs, in order of arrival: a file for each in the store's directory, void once its process is gone.

Only who could take one of the same GPUs stands before another.
"""

from __future__ import annotations

import posix

from gpurun.gpu.leases.liveness import lives
from gpurun.linux.files import read_file, write_atomically
from gpurun.record import Record

_PREFIX = "waiting."


class Ticket(Record):
    """A process that waits for one of the GPUs with these *keys*; *number* says when it came."""

    number: int
    pid: int
    start_time: int
    keys: frozenset[str]


def draw(directory: str, pid: int, start_time: int, keys: frozenset[str]) -> Ticket:
    """Stand at the end of the queue.  The lock is held."""
    number = max([ticket.number for ticket in tickets(directory)], default=0) + 1
    text = " ".join([str(pid), str(start_time), *sorted(keys)])
    write_atomically(f"{directory}/{_PREFIX}{number}", text.encode(), 0o644)
    return Ticket(number, pid, start_time, keys)


def leave(directory: str, ticket: Ticket) -> None:
    """Stand in the queue no longer."""
    try:
        posix.unlink(f"{directory}/{_PREFIX}{ticket.number}")
    except FileNotFoundError:
        pass


def tickets(directory: str, tidy: bool = True) -> tuple[Ticket, ...]:
    """Who waits, in their order; with *tidy*, and the lock, what those have left who are gone is removed."""
    found = []
    for name in posix.listdir(directory):
        number = name.removeprefix(_PREFIX)
        if number == name or not number.isdecimal():
            continue
        words = read_file(f"{directory}/{name}").decode("utf-8", "replace").split()
        if len(words) > 1 and words[0].isdecimal() and words[1].isdecimal() and lives(int(words[0]), int(words[1])):
            found.append(Ticket(int(number), int(words[0]), int(words[1]), frozenset(words[2:])))
        elif tidy:
            posix.unlink(f"{directory}/{name}")
    return tuple(sorted(found, key=lambda ticket: ticket.number))


def ahead(directory: str, keys: frozenset[str], own: Ticket | None) -> Ticket | None:
    """Who stands before *own* (None: before somebody who has just come) and wants one of *keys*; the last of them."""
    before = [t for t in tickets(directory) if (own is None or t.number < own.number) and t.keys & keys]
    return before[-1] if before else None
