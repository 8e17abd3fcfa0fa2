"""What processes do with DRM devices, as the kernel's fdinfo tells (Documentation/gpu/drm-usage-stats.rst)."""

from __future__ import annotations

import posix
from _stat import S_ISCHR

from gpurun.decimals import decimal
from gpurun.gpu.host.drm import DRM_MAJOR, is_pci_address
from gpurun.gpu.host.reads import read_attribute
from gpurun.record import Record

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20}
#: A process has no more descriptors looked at than that, and no text of one is longer.
_MOST_DESCRIPTORS, _LIMIT = 4096, 1 << 14
#: Keys for the memory of a client in one region, the best first: resident is what it has now.
_MEMORY = ("drm-resident-", "drm-memory-", "drm-total-")


class DrmClient(Record):
    """A client of a driver, that is one opening of a device: *pid* has it, *pci* is the device's address.

    *memory* is in bytes of the device's own memory.  *busy* are (engine, nanoseconds) and *cycles* (engine, its cycles, all
    that passed): two looks make a load.  *minor* is that of the node that was opened, -1 where it is not known: the
    partitions of a GPU have one address and nodes of their own.
    """

    pid: int
    pci: str
    number: int
    memory: int = 0
    busy: tuple[tuple[str, int], ...] = ()
    cycles: tuple[tuple[str, int, int], ...] = ()
    minor: int = -1


def clients_of(pid: int, proc: str = "/proc") -> tuple[DrmClient, ...]:
    """The clients of the process *pid*, each once; none for a process that is gone or not ours to see."""
    found: dict[tuple[str, int], DrmClient] = {}
    try:
        names = posix.listdir(f"{proc}/{pid}/fd")[:_MOST_DESCRIPTORS]
    except OSError:
        return ()
    for name in names:
        try:
            opened = posix.stat(f"{proc}/{pid}/fd/{name}")
        except OSError:
            continue  # closed meanwhile
        if S_ISCHR(opened.st_mode) and posix.major(opened.st_rdev) == DRM_MAJOR:
            text = read_attribute(f"{proc}/{pid}/fdinfo/{name}", _LIMIT)
            client = read_client(pid, text, posix.minor(opened.st_rdev))
            if client is not None:
                found.setdefault((client.pci, client.number), client)
    return tuple(found.values())


def all_clients(proc: str = "/proc") -> tuple[DrmClient, ...]:
    """The clients of all processes that the caller may look into, by pid."""
    try:
        pids = sorted([int(name) for name in posix.listdir(proc) if name.isdigit()])
    except OSError:
        return ()
    return tuple([client for pid in pids for client in clients_of(pid, proc)])


def memory_by_pid(clients: tuple[DrmClient, ...]) -> dict[int, int]:
    """Process → bytes that its *clients* have of the device's memory."""
    found: dict[int, int] = {}
    for client in clients:
        found[client.pid] = found.get(client.pid, 0) + client.memory
    return found


def read_client(pid: int, text: str, minor: int = -1) -> DrmClient | None:
    """The client in the *text* of an fdinfo file of *pid*; None where the driver says nothing of one."""
    lines = [line.partition(":") for line in text.splitlines()]
    values = {key.strip(): value.strip() for key, colon, value in lines if colon and key.startswith("drm-")}
    pci, number = values.get("drm-pdev", ""), decimal(values.get("drm-client-id", ""))
    if number is None or not is_pci_address(pci):
        return None
    memory: dict[str, int] = {}
    for prefix in _MEMORY:
        for key, value in values.items():
            if key.startswith(f"{prefix}vram"):
                memory.setdefault(key.removeprefix(prefix), _size(value))
    busy = []
    cycles = []
    for key, value in values.items():
        spent = decimal(value.removesuffix(" ns"))
        if key.startswith("drm-engine-") and not key.startswith("drm-engine-capacity-") and spent is not None:
            busy.append((key.removeprefix("drm-engine-"), spent))
        passed = decimal(values.get(key.replace("drm-cycles-", "drm-total-cycles-"), ""))
        if key.startswith("drm-cycles-") and spent is not None and passed is not None:
            cycles.append((key.removeprefix("drm-cycles-"), spent, passed))
    return DrmClient(pid, pci, number, sum(memory.values()), tuple(busy), tuple(cycles), minor)


def _size(text: str) -> int:
    digits, _, unit = text.partition(" ")
    return (decimal(digits) or 0) * _UNITS.get(unit, 0)
