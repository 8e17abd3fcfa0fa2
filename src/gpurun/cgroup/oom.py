"""How memory ended a container: from its cgroup, or from the kernel's log when the cgroup is gone.

A scope of systemd goes with its last process and takes its counters along.  The kernel has reported each kill in its log as
well: whose limit it was, which processes there were, which one it chose.  That log is read only for a container that has
stopped, whose cgroup is gone, and only if any process of the host was killed so since the container was made.

A record belongs to a container when it names its unit **and** its first process: an id that is used again, as by an engine
that starts a container anew, is another container.  The kernel tells of ten kills in five seconds and no more, and gives
no reports of a host where vm.oom_dump_tasks is 0 but for a first process itself: only what the kernel logged is reported.

Reference: admin-guide/cgroup-v2.rst, "Memory Interface Files"; mm/oom_kill.c in the kernel's source.
"""

from __future__ import annotations

from gpurun.cgroup.control import oom_kill_count
from gpurun.decimals import decimal
from gpurun.linux.files import read_file
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Of more bytes than this is "no limit" made when the kernel writes it as a number.
_NO_LIMIT = 1 << 60


class OomKill(Record):
    """One kill in the kernel's log."""

    limited: str  # the cgroup whose limit was met, from the root of the tree; "" when it was the host's memory
    cgroup: str  # the cgroup of the process that was killed
    pid: int
    others: tuple[int, ...]  # the processes that there were
    usage: int = 0  # of the one that was limited, in bytes; 0 when not known
    limit: int = 0


def oom_facts(path: str) -> dict[str, int]:
    """What the OOM killer did to the cgroup: ``kills``, and in bytes ``limit`` and ``peak`` as far as the kernel says.

    Empty when it killed nothing, and when the cgroup is gone.
    """
    kills = oom_kill_count(path)
    if not kills:
        return {}
    facts = {"kills": kills}
    for name, file in (("limit", "memory.max"), ("peak", "memory.peak")):  # memory.peak: Linux 5.19
        try:
            facts[name] = int(read_file(f"{path}/{file}", 4096))
        except (OSError, ValueError):
            pass  # no such file, or "max": then it was not this cgroup's limit
    return facts


def parse_kills(messages: Iterable[bytes]) -> Iterator[OomKill]:
    """The kills that *messages* of the kernel's log tell of, as :func:`gpurun.linux.kmsg.kernel_messages` gives them."""
    usage = limit = 0
    others: list[int] = []
    for message in messages:
        if b" invoked oom-killer: " in message:
            usage = limit = 0
            others = []
        elif message.startswith(b"memory: usage "):
            usage, limit = _kilobytes(message, b"usage "), _kilobytes(message, b"limit ")
        elif message.startswith(b"["):
            pid = _number(message[1:].partition(b"]")[0].strip())
            if pid is not None:
                others.append(pid)
        elif message.startswith(b"oom-kill:"):
            found = _victim(message)
            if found is not None:
                limited, cgroup, victim = found
                yield OomKill(limited, cgroup, victim, tuple(others), usage, limit)


def _kilobytes(message: bytes, name: bytes) -> int:
    """The bytes of ``NAME 65536kB``; 0 when it is not there."""
    return (_number(message.partition(name)[2].partition(b"kB")[0]) or 0) << 10


def _number(digits: bytes) -> int | None:
    return decimal(digits.decode("ascii", "replace"))


def _victim(message: bytes) -> tuple[str, str, int] | None:
    """(limited, cgroup, pid) of a line ``oom-kill:constraint=...``; None for one that is not like that.

    A container chooses the names of its processes and of cgroups below its own, and may put all of this into one.  The last
    ``pid=`` is after all of them, so it is true; and to be a container's own, a kill must have had its first process about.
    """
    before, found, after = message.partition(b",task_memcg=")
    cgroup = after.partition(b",task=")[0]
    pid = _number(message.rpartition(b",uid=")[0].rpartition(b",pid=")[2])
    if not found or pid is None:
        return None
    return _plain(before.partition(b",oom_memcg=")[2]), _plain(cgroup), pid


def _plain(text: bytes) -> str:
    """*text* with each ``\\xNN`` of the log as the byte that it stands for."""
    first, *rest = text.split(b"\\x")
    parts = [first]
    for part in rest:
        try:
            parts.append(bytes([int(part[:2], 16)]) + part[2:])
        except ValueError:
            parts.append(b"\\x" + part)
    return b"".join(parts).decode("utf-8", "surrogateescape")


def facts_of_kills(kills: Iterable[OomKill], unit: str, pid: int) -> dict[str, int]:
    """As :func:`oom_facts`, of the container in *unit* whose first process was *pid*: from what the log tells.

    ``limit`` and ``peak`` are there when it was the container's own limit.
    """
    mine = [kill for kill in kills if f"/{unit}/" in f"{kill.cgroup}/" and pid in (kill.pid, *kill.others)]
    if not mine:
        return {}
    facts = {"kills": len(mine)}
    own = [kill for kill in mine if kill.limited.endswith(f"/{unit}") and kill.usage]
    if own:
        if own[-1].limit < _NO_LIMIT:
            facts["limit"] = own[-1].limit
        facts["peak"] = max([kill.usage for kill in own])
    return facts


def logged_oom_facts(unit: str, pid: int) -> dict[str, int]:
    """:func:`facts_of_kills` of the log of this host; empty where it may not be read."""
    from gpurun.linux.kmsg import kernel_messages

    return facts_of_kills(parse_kills(kernel_messages()), unit, pid)


def describe_oom(facts: dict[str, int]) -> str:
    """*facts* of :func:`oom_facts` in a sentence, "" for none."""
    if not facts:
        return ""
    what = {0: "all processes were", 1: "1 process was"}.get(facts["kills"], f"{facts['kills']} processes were")
    limit = (
        f"the limit is {_mebibytes(facts['limit'])}"
        if "limit" in facts
        else "it was the memory of the host or of a cgroup above"
    )
    peak = f", the peak was {_mebibytes(facts['peak'])}" if "peak" in facts else ""
    return f"out of memory: {what} killed; {limit}{peak}; raise linux.resources.memory.limit or use less"


def _mebibytes(size: int) -> str:
    tenths = size * 10 >> 20
    return f"{tenths // 10}.{tenths % 10} MiB" if tenths % 10 else f"{tenths // 10} MiB"
