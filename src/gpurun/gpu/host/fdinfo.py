"""What processes do with DRM devices, as the kernel's fdinfo tells (Documentation/gpu/drm-usage-stats.rst)."""

from __future__ import annotations

import posix
from _stat import S_ISCHR

from gpurun.decimals import decimal
from gpurun.gpu.host.drm import DRM_MAJOR, is_pci_address
from gpurun.gpu.host.reads import read_attribute
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
#: The inode of the pid namespace that the kernel begins with (PROC_PID_INIT_INO of include/linux/proc_ns.h).
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
#: A process has no more descriptors looked at than that, and no text of one is longer.
_MOST_DESCRIPTORS, _LIMIT = 4096, 1 << 14
#: No device has more bytes of memory, or more engines of a kind; and no text more of them.
_MAX_BYTES, _MAX_ENGINES, _MOST_ENGINES = 1 << 50, 256, 64
_CAPACITY, _BUSY, _CYCLES = "drm-engine-capacity-", "drm-engine-", "drm-cycles-"
#: Keys for the memory of a client in one region, the best first: resident is what it has now.
_MEMORY = ("drm-resident-", "drm-memory-", "drm-total-")


class DrmClient(Record):
    """A client of a driver, that is one opening of a device: *pid* has it, *pci* is the device's address.

    *memory* is in bytes of the device's own memory.  *busy* are (engine, nanoseconds) and *cycles* (engine, its cycles, all
    that passed): two looks make a load; *capacity* is (engine, how many there are of the kind), where it is not one.
    *minor* is that of the node that was opened, -1 where it is not known: the partitions of a GPU have one address and
    nodes of their own.
    """

    pid: int
    pci: str
    number: int
    memory: int = 0
    busy: tuple[tuple[str, int], ...] = ()
    cycles: tuple[tuple[str, int, int], ...] = ()
    minor: int = -1
    capacity: tuple[tuple[str, int], ...] = ()


class OpenNode(Record):
    """A device node of DRM, of *minor*, that the process *pid* has open as its descriptor *number*."""

    pid: int
    number: str
    minor: int


class OpenNodes(Record):
    """What processes have open; *whole* is false where some of the host's processes may not be looked into."""

    nodes: tuple[OpenNode, ...]
    whole: bool


class Clients(Record):
    """The clients of a device; *whole* is false where there may be more, of processes that may not be looked into."""

    clients: tuple[DrmClient, ...]
    whole: bool


def open_nodes(proc: str = "/proc", pids: Iterable[int] | None = None) -> OpenNodes:
    """What the processes *pids* have open of DRM, those of the caller's *proc* if they are None, as far as it may see that.

    Only the root of the host sees the whole.
    """
    whole = posix.geteuid() == 0 and (proc != "/proc" or _is_first_pid_namespace())
    found: list[OpenNode] = []
    try:
        every = pids if pids is not None else sorted([int(name) for name in posix.listdir(proc) if name.isdigit()])
    except OSError:
        return OpenNodes((), False)
    for pid in every:
        try:
            names = posix.listdir(f"{proc}/{pid}/fd")
        except PermissionError:
            whole = False
            continue
        except OSError:
            continue  # ended meanwhile
        whole = whole and len(names) <= _MOST_DESCRIPTORS
        for name in names[:_MOST_DESCRIPTORS]:
            try:
                opened = posix.stat(f"{proc}/{pid}/fd/{name}")
            except OSError:
                continue  # closed meanwhile
            if S_ISCHR(opened.st_mode) and posix.major(opened.st_rdev) == DRM_MAJOR:
                found.append(OpenNode(pid, name, posix.minor(opened.st_rdev)))
    return OpenNodes(tuple(found), whole)


def clients_at(nodes: Iterable[OpenNode], proc: str = "/proc") -> tuple[DrmClient, ...]:
    """The clients of the open *nodes*, of each process each once; what has been closed meanwhile is left out."""
    found: dict[tuple[int, str, int], DrmClient] = {}
    for node in nodes:
        client = read_client(node.pid, read_attribute(f"{proc}/{node.pid}/fdinfo/{node.number}", _LIMIT), node.minor)
        if client is not None:
            found.setdefault((client.pid, client.pci, client.number), client)
    return tuple(found.values())


def clients_of(pid: int, proc: str = "/proc") -> tuple[DrmClient, ...]:
    """The clients of the process *pid*, each once; none for a process that is gone or not ours to see."""
    return clients_at(open_nodes(proc, (pid,)).nodes, proc)


def _is_first_pid_namespace() -> bool:
    try:
        return posix.readlink("/proc/self/ns/pid") == f"pid:[{_FIRST_PID_NAMESPACE}]"
    except OSError:
        return False


def distinct_clients(clients: Iterable[DrmClient]) -> tuple[DrmClient, ...]:
    """*clients*, without those that several processes have: what one has inherited is the same client."""
    found: dict[tuple[str, int], DrmClient] = {}
    for client in clients:
        found.setdefault((client.pci, client.number), client)
    return tuple(found.values())


def engine_loads(before: Iterable[DrmClient], after: Iterable[DrmClient], seconds: float) -> dict[str, float]:
    """Engine → the share of its time (0 to 1) that it worked for clients between two looks, *seconds* apart.

    Clients that are in only one look count nothing: what they did before is not known.  Of several engines of a kind it is
    the share of all of them.
    """
    began = {(client.pci, client.number): client for client in distinct_clients(before)}
    loads: dict[str, float] = {}
    for client in distinct_clients(after):
        first = began.get((client.pci, client.number))
        if first is None:
            continue
        capacity = dict(client.capacity)
        old_busy = dict(first.busy)
        ratios: list[tuple[str, float, float]] = [
            (name, spent - old_busy.get(name, spent), seconds * 10**9) for name, spent in client.busy
        ]
        counted = {name: (spent, passed) for name, spent, passed in first.cycles}
        for name, spent, passed in client.cycles:
            old_spent, old_passed = counted.get(name, (spent, passed))
            ratios.append((name, spent - old_spent, passed - old_passed))
        for name, worked, had in ratios:
            share = worked / had / max(capacity.get(name, 1), 1) if worked > 0 and had > 0 else 0.0
            loads[name] = min(loads.get(name, 0.0) + share, 1.0)
    return loads


def memory_by_pid(clients: tuple[DrmClient, ...]) -> dict[int, int]:
    """Process → bytes that its *clients* have of the device's memory."""
    found: dict[int, int] = {}
    for client in clients:
        found[client.pid] = found.get(client.pid, 0) + client.memory
    return found


def read_client(pid: int, text: str, minor: int = -1) -> DrmClient | None:
    """The client in the *text* of an fdinfo file of *pid*; None where the driver says nothing of one."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.startswith("drm-"):
            values.setdefault(key.strip(), value.strip())
    pci, number = values.get("drm-pdev", ""), decimal(values.get("drm-client-id", ""))
    if number is None or not is_pci_address(pci):
        return None
    memory: dict[str, int] = {}
    for prefix in _MEMORY:
        for key, value in values.items():
            if key.startswith(f"{prefix}vram"):
                memory.setdefault(key.removeprefix(prefix), _size(value))
    busy: list[tuple[str, int]] = []
    cycles: list[tuple[str, int, int]] = []
    capacity: list[tuple[str, int]] = []
    for key, value in values.items():
        kind, name = _engine_key(key)
        spent = decimal(value.removesuffix(" ns"))
        if not name or spent is None:
            continue
        passed = decimal(values.get(f"drm-total-cycles-{name}", ""))
        if kind == _BUSY:
            busy.append((name, spent))
        elif kind == _CYCLES and passed is not None:
            cycles.append((name, spent, passed))
        elif kind == _CAPACITY and 1 < spent <= _MAX_ENGINES:
            capacity.append((name, spent))
    return DrmClient(
        pid,
        pci,
        number,
        min(sum(memory.values()), _MAX_BYTES),
        tuple(busy[:_MOST_ENGINES]),
        tuple(cycles[:_MOST_ENGINES]),
        minor,
        tuple(capacity[:_MOST_ENGINES]),
    )


def _engine_key(key: str) -> tuple[str, str]:
    """(kind, engine) of a key of an engine; empty texts for any other."""
    for kind in (_CAPACITY, _BUSY, _CYCLES):
        name = key.removeprefix(kind)
        if key.startswith(kind) and name.replace("-", "").isalnum() and name.isascii():
            return kind, name
    return "", ""


def _size(text: str) -> int:
    digits, _, unit = text.partition(" ")
    return (decimal(digits, _MAX_BYTES) or 0) * _UNITS.get(unit, 0)
