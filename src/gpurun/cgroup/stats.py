"""What a container uses, read from its cgroup; pure but for the reading of files.

The shape is runc's ``events --stats``, which monitoring knows.  A file that is not there (its controller is missing, or the
kernel is older) leaves its numbers at zero, as runc does.

Reference: admin-guide/cgroup-v2.rst; accounting/psi.rst.
"""

from __future__ import annotations

import posix

from gpurun.cgroup.control import DIRECTORY
from gpurun.decimals import decimal, number_list
from gpurun.linux.files import Fd, read_fd
from gpurun.linux.fs import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Read = Callable[[str], str]

#: What runc says for "no limit".
UNLIMITED = (1 << 64) - 1

_BENEATH = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
#: io.stat's counters: (name there, operation, list of runc's document)
_IO_COUNTERS = (
    ("rbytes", "Read", "ioServiceBytesRecursive"),
    ("wbytes", "Write", "ioServiceBytesRecursive"),
    ("rios", "Read", "ioServicedRecursive"),
    ("wios", "Write", "ioServicedRecursive"),
)
_IO_LISTS = (
    "ioServiceBytesRecursive",
    "ioServicedRecursive",
    "ioQueueRecursive",
    "ioServiceTimeRecursive",
    "ioWaitTimeRecursive",
    "ioMergedRecursive",
    "ioTimeRecursive",
    "sectorsRecursive",
)


def read_stats(path: str, hugepage_sizes: tuple[str, ...] = ()) -> dict[str, Any]:
    """The numbers of the cgroup in the directory *path*; raises OSError when it is gone."""
    with Fd(posix.open(path, DIRECTORY)) as fd:
        return stats(lambda name: _read(fd, name), hugepage_sizes)


def _read(fd: int, name: str) -> str:
    """The text of a file of the cgroup, empty when there is none or it cannot be read (PSI is off: EOPNOTSUPP)."""
    try:
        file = openat2(fd, name, posix.O_RDONLY, _BENEATH)
    except OSError:
        return ""
    with Fd(file):
        try:
            return read_fd(file).decode()
        except OSError:
            return ""


def stats(read: Read, hugepage_sizes: tuple[str, ...] = ()) -> dict[str, Any]:
    """``data`` of a ``stats`` event, from *read*, which gives the text of a file by its name ("" for none)."""
    made: dict[str, Any] = {
        "cpu": _cpu(read),
        "cpuset": _cpuset(read),
        "memory": _memory(read),
        "pids": _with_limit({"current": _number(read("pids.current"))}, _number(read("pids.max"), none=0)),
        "blkio": _blkio(read),
        "hugetlb": {size: _hugetlb(read, size) for size in hugepage_sizes},
        "intel_rdt": {},
        "network_interfaces": None,
    }
    dmem = _dmem(read)
    return {**made, "dmem": dmem} if dmem else made


def _with_limit(made: dict[str, Any], limit: int) -> dict[str, Any]:
    """*made* with the limit, which runc leaves out when there is none."""
    return {**made, "limit": limit} if limit else made


def _number(text: str, none: int = UNLIMITED) -> int:
    """The number of a file with one; *none* for ``max``, 0 for no file."""
    word = text.strip()
    if word == "max":
        return none
    return decimal(word) or 0


def _read_keyed(text: str) -> dict[str, int]:
    """The lines ``key number`` of a flat keyed file."""
    pairs = [line.split() for line in text.splitlines()]
    numbers = [(pair[0], decimal(pair[1])) for pair in pairs if len(pair) == 2]
    return {name: number for name, number in numbers if number is not None}


def _cpu(read: Read) -> dict[str, Any]:
    usec = _read_keyed(read("cpu.stat"))
    made: dict[str, Any] = {
        "usage": {
            "total": usec.get("usage_usec", 0) * 1000,
            "percpu": [],
            "percpu_kernel": [],
            "percpu_user": [],
            "kernel": usec.get("system_usec", 0) * 1000,
            "user": usec.get("user_usec", 0) * 1000,
        },
        "throttling": {
            "periods": usec.get("nr_periods", 0),
            "throttledPeriods": usec.get("nr_throttled", 0),
            "throttledTime": usec.get("throttled_usec", 0) * 1000,
        },
    }
    return _with_psi(made, read("cpu.pressure"))


def _cpuset(read: Read) -> dict[str, Any]:
    """The lists as runc has them: numbers, not ranges; what only v1 has is false or 0."""
    return {
        "cpus": sorted(number_list(read("cpuset.cpus")) or ()),
        "cpu_exclusive": int(read("cpuset.cpus.partition").strip() in ("root", "isolated")),
        "mems": sorted(number_list(read("cpuset.mems")) or ()),
        "mem_hardwall": 0,
        "mem_exclusive": 0,
        "memory_migrate": 0,
        "memory_spread_page": 0,
        "memory_spread_slab": 0,
        "memory_pressure": 0,
        "sched_load_balance": 0,
        "sched_relax_domain_level": 0,
    }


def _memory(read: Read) -> dict[str, Any]:
    raw = _read_keyed(read("memory.stat"))
    usage = _usage(read, "memory")
    swap = _usage(read, "memory.swap")
    # runc's "swap" is memory and swap together, as cgroup v1 counted; the highest usage of both together is not known.
    limits = (usage["limit"], swap["limit"])
    both = {
        "limit": UNLIMITED if UNLIMITED in limits else sum(limits),
        "usage": usage.get("usage", 0) + swap.get("usage", 0),
        "max": 0,
        "failcnt": swap["failcnt"],
    }
    made: dict[str, Any] = {
        "cache": raw.get("file", 0),
        "usage": usage,
        "swap": both,
        "kernel": {"limit": 0, "usage": raw.get("kernel", 0), "max": 0, "failcnt": 0},
        "kernelTCP": {"limit": 0, "usage": raw.get("sock", 0), "max": 0, "failcnt": 0},
        "raw": raw,
    }
    return _with_psi(made, read("memory.pressure"))


def _usage(read: Read, prefix: str) -> dict[str, int]:
    events = _read_keyed(read(f"{prefix}.events"))
    return {
        "limit": _number(read(f"{prefix}.max")),
        "usage": _number(read(f"{prefix}.current")),
        "max": _number(read(f"{prefix}.peak")),
        "failcnt": events.get("max", 0),
    }


def _dmem(read: Read) -> dict[str, dict[str, int]]:
    """The memory of GPUs by region of the dmem controller, which runc does not have: bytes."""
    limits = _read_keyed(read("dmem.max"))
    used = _read_keyed(read("dmem.current"))
    regions = [name for name, size in used.items() if size or name in limits]
    return {name: _with_limit({"usage": used[name]}, limits.get(name, 0)) for name in regions}


def _hugetlb(read: Read, size: str) -> dict[str, int]:
    """The highest usage is not known to cgroup v2: 0."""
    usage = _number(read(f"hugetlb.{size}.current"))
    return {"usage": usage, "max": 0, "failcnt": _read_keyed(read(f"hugetlb.{size}.events")).get("max", 0)}


def _blkio(read: Read) -> dict[str, Any]:
    lists: dict[str, list[dict[str, Any]]] = {name: [] for name in _IO_LISTS}
    for line in read("io.stat").splitlines():
        device, *words = line.split()
        major, colon, minor = device.partition(":")
        if not colon:
            continue  # "252:0" begins each line but that of a device that is gone
        values = dict([word.split("=", 1) for word in words if "=" in word])
        for name, op, target in _IO_COUNTERS:
            if name in values:
                entry = {"major": int(major), "minor": int(minor), "op": op, "value": int(values[name])}
                lists[target].append(entry)
    return _with_psi(lists, read("io.pressure"))


def _with_psi(made: dict[str, Any], pressure: str) -> dict[str, Any]:
    parsed = psi(pressure)
    return {**made, "psi": parsed} if parsed else made


def psi(text: str) -> dict[str, Any]:
    """Pressure stall information: shares of time in percent, *total* in microseconds; empty when the kernel has none."""
    made: dict[str, Any] = {}
    for line in text.splitlines():
        kind, *words = line.split()
        values = dict([word.split("=", 1) for word in words])
        made[kind] = {k: int(v) if k == "total" else float(v) for k, v in values.items()}
    return made
