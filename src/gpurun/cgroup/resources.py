"""``linux.resources`` as cgroup v2 files and their values: pure, nothing is read or written here.

The order and the conversions are runc's, so that ``docker inspect``, kubelet and monitoring see what they are used to; the
kernel's side is admin-guide/cgroup-v2.rst.

**A limit whose controller is not in this tree is refused here**, before anything is made, and the error says where the
controller is and how to get it.  What asks for nothing is no limit, and passes without the controller: an absent or empty
member, 0 where 0 means "not given", -1 or ``max``, and a value that is the kernel's default for a new cgroup.  The last is
for clients that always ask: plain ``ctr run`` sends ``cpu.shares`` 1024, which is the default ``cpu.weight`` of 100.
With the controller there such values are written all the same, because ``update`` sets back to them.
"""

from __future__ import annotations

from errno import EINVAL, ENOENT

from gpurun.errors import ConfigError
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gpurun.oci.resources import BlockIO, Cpu, HugepageLimit, Memory, Rdma, Resources

UNLIMITED = -1
DEFAULT_PERIOD = 100_000  # microseconds, the kernel's default for cpu.max

#: What a new cgroup has: a value equal to this enforces nothing (``io.weight`` also spells it ``default N``).
_KERNEL_DEFAULTS = {
    "cpu.weight": "100",
    "cpu.idle": "0",
    "cpu.max.burst": "0",
    "io.weight": "100",
    "memory.min": "0",
    "memory.low": "0",
    "memory.oom.group": "0",
}

#: The controllers that systemd delegates, if it is configured to.
_DELEGATED = ("cpu", "cpuset", "io", "memory", "pids")

_THROTTLES = (
    ("throttleReadBpsDevice", "rbps", "read_bps"),
    ("throttleWriteBpsDevice", "wbps", "write_bps"),
    ("throttleReadIOPSDevice", "riops", "read_iops"),
    ("throttleWriteIOPSDevice", "wiops", "write_iops"),
)


class CgroupWrite(Record):
    """One write of *value* to *file* of the container's cgroup; *where* is the JSON path that asked for it.

    *ignore* are errnos that are no failure.  *otherwise* is the write to make instead when *file* does not exist.
    """

    file: str
    value: str
    where: str
    ignore: tuple[int, ...] = ()
    otherwise: CgroupWrite | None = None


def plan_resources(
    resources: Resources,
    controllers: Collection[str],
    bound_to_v1: Collection[str] = (),
    hugepage_sizes: Collection[str] | None = None,
    json_path: str = "linux.resources",
    hint: str = "",
) -> tuple[CgroupWrite, ...]:
    """All writes that enforce *resources*, in the order in which they are to be made (devices are a program, not a file).

    *controllers*, *bound_to_v1* and *hint* are those of :class:`gpurun.cgroup.tree.Tree`; *hugepage_sizes* are the sizes
    this kernel has (``2MB``), or None to leave the check to the kernel.

    Raises :class:`ConfigError` naming the JSON path for values that contradict each other, for limits whose controller is
    missing (see the module's text for what counts as a limit) and for huge page sizes this kernel does not have.
    """
    planned: list[CgroupWrite] = []
    for write in _all_writes(resources, hugepage_sizes, json_path):
        controller = write.file.partition(".")[0]
        if controller == "cgroup" or controller in controllers:
            planned.append(write)
        elif not _is_default(write.file, write.value):
            raise ConfigError(write.where, missing_controller(write, controller, bound_to_v1, json_path, hint))
    return tuple(planned)


def needs_domain(writes: tuple[CgroupWrite, ...]) -> bool:
    """Whether *writes* need a cgroup that is not threaded (the controllers are those that runc counts as such, and dmem)."""
    return any(write.file.startswith(("memory.", "io.", "cpu.", "hugetlb.", "dmem.")) for write in writes)


def missing_controller(
    write: CgroupWrite, controller: str, bound_to_v1: Collection[str], json_path: str, hint: str = ""
) -> str:
    """Why *write* cannot be made in a tree that lacks *controller*, and what to do."""
    text = f'the cgroup v2 controller "{controller}" is not available'
    if write.where.startswith(f"{json_path}.unified."):
        text = f'unified resource "{write.file}" can\'t be set: controller "{controller}" not available'
    if controller in bound_to_v1:
        return (
            f"{text}, it is bound to cgroup v1 on this host: boot with systemd.unified_cgroup_hierarchy=1 "
            "(or cgroup_no_v1=all), or remove the limit"
        )
    if hint and controller in _DELEGATED:
        return f"{text}: {hint}"
    return (
        f"{text}: the kernel lacks or disables it, or the parent cgroup does not delegate it; provide it or remove the limit"
    )


def _is_default(file: str, value: str) -> bool:
    """Whether *value* is what a new cgroup has in *file* anyway."""
    if file == "cpu.max":
        return value.split()[:1] in ([], ["max"])  # without a quota the period limits nothing
    if file == "memory.low" and value == "max":
        return True  # the specification's -1, no soft limit
    words = value.replace("=", " ").split()
    if words and words[-1] == "max":
        return True  # pids.max, memory.max, hugetlb.*.max, `8:0 rbps=max` of io.max
    return value.removeprefix("default ") == _KERNEL_DEFAULTS.get(file)


def _all_writes(resources: Resources, hugepage_sizes: Collection[str] | None, json_path: str) -> Iterator[CgroupWrite]:
    if resources.pids_limit is not None:
        # 0 cannot be enforced (the init counts) and is not "unlimited" (specification 1.3): the smallest limit there is.
        value = "max" if resources.pids_limit < 0 else str(max(1, resources.pids_limit))
        yield CgroupWrite("pids.max", value, f"{json_path}.pids.limit")
    if resources.memory is not None:
        yield from _memory(resources.memory, f"{json_path}.memory")
    if resources.block_io is not None:
        yield from _block_io(resources.block_io, f"{json_path}.blockIO")
    if resources.cpu is not None:
        yield from _cpu(resources.cpu, f"{json_path}.cpu")
        for name, value in (("cpus", resources.cpu.cpus), ("mems", resources.cpu.mems)):
            if "\n" in value.rstrip("\n"):  # the kernel would take only the first line
                raise ConfigError(f"{json_path}.cpu.{name}", f'"{value}" has several lines, it must be a list like 0-3,8')
            if value:
                yield CgroupWrite(f"cpuset.{name}", value, f"{json_path}.cpu.{name}")
    for index, limit in enumerate(resources.hugepage_limits):
        yield from _hugepages(limit, hugepage_sizes, f"{json_path}.hugepageLimits[{index}]")
    for device, rdma in resources.rdma.items():
        yield from _rdma(device, rdma, f"{json_path}.rdma.{device}")
    for file, value in resources.unified.items():
        # A value of several lines is one write for each: the kernel reads one setting from a write.
        for line in value.split("\n"):
            if line.strip():
                yield CgroupWrite(file, line, f"{json_path}.unified.{file}")


def _number(value: int) -> str:
    return "max" if value == UNLIMITED else str(value)


def _memory(memory: Memory, json_path: str) -> Iterator[CgroupWrite]:
    swap = memory_swap_max(memory.limit, memory.swap, f"{json_path}.swap")
    if swap is not None:
        # Before memory.max: lowering both on a live container must never leave a moment with more swap than asked for.
        # A kernel without swap has no such file; there "none" and "all there is" are true already.
        ignore = (ENOENT,) if swap in ("0", "max") else ()
        yield CgroupWrite("memory.swap.max", swap, f"{json_path}.swap", ignore)
    if memory.limit:
        yield CgroupWrite("memory.max", _number(memory.limit), f"{json_path}.limit")
    if memory.reservation:
        yield CgroupWrite("memory.low", _number(memory.reservation), f"{json_path}.reservation")


def memory_swap_max(limit: int, swap: int, json_path: str) -> str | None:
    """``memory.swap.max`` (only swap) from *limit* and *swap* (memory and swap together); None is not to be written.

    All are bytes; 0 is "not given", -1 "no limit".  Raises :class:`ConfigError` at *json_path* for a swap limit that is
    below the memory limit, or without one.
    """
    if limit == UNLIMITED and swap == 0:
        return "max"
    if swap == 0:
        return None
    if UNLIMITED in (swap, limit):
        return _number(swap)
    if limit == 0:
        raise ConfigError(json_path, "unable to set swap limit without memory limit")
    if swap < limit:
        raise ConfigError(json_path, "memory+swap limit should be >= memory limit")
    return str(swap - limit)


def _cpu(cpu: Cpu, json_path: str) -> Iterator[CgroupWrite]:
    if cpu.idle is not None:
        yield CgroupWrite("cpu.idle", str(cpu.idle), f"{json_path}.idle", () if cpu.idle else (ENOENT,))
    if cpu.shares and cpu.idle != 1:
        # The kernel refuses a weight for an idle cgroup (it has one of its own, the lowest).
        yield CgroupWrite("cpu.weight", str(cpu_weight(cpu.shares)), f"{json_path}.shares")
    limited = bool(cpu.quota or cpu.period)
    if cpu.burst is not None:
        # A burst must not exceed the quota in force: raised with the quota it fits only after cpu.max, lowered with the
        # quota only before.  So it is written on both sides, and before may fail.
        burst = CgroupWrite("cpu.max.burst", str(cpu.burst), f"{json_path}.burst")
        yield CgroupWrite(burst.file, burst.value, burst.where, (EINVAL,)) if limited else burst
    if limited:
        quota = str(cpu.quota) if cpu.quota > 0 else "max"
        yield CgroupWrite(
            "cpu.max", f"{quota} {cpu.period or DEFAULT_PERIOD}", f"{json_path}.{'quota' if cpu.quota else 'period'}"
        )
        if cpu.burst is not None:
            yield burst


def cpu_weight(shares: int) -> int:
    """``cpu.weight`` (1 to 10000) for v1 *shares* (2 to 262144, 1024 by default).

    The curve goes through (2, 1), (1024, 100) and (262144, 10000): default stays default, as in runc since 1.3.2 and crun
    since 1.23.  Before, 1024 shares became 39.
    """
    if shares <= 2:
        return 1
    if shares >= 262144:
        return 10000
    log = _log2(shares)
    exact = float(10 ** ((log * log + 125 * log) / 612 - 7 / 34))
    rounded = int(exact)
    return rounded if rounded == exact else rounded + 1


def _log2(value: int) -> float:
    """log2 for 1 ≤ *value* < 2**53, to the last bit or two; ``math`` is a shared library in some builds of Python."""
    exponent = value.bit_length() - 1
    mantissa = value / (1 << exponent)
    # ln m = 2 artanh((m-1)/(m+1)); the argument is below 1/3, so 20 terms are more than a float holds.
    z = (mantissa - 1) / (mantissa + 1)
    square, power, total = z * z, z, 0.0
    for odd in range(1, 41, 2):
        total += power / odd
        power *= square
    return exponent + 2 * total / 0.6931471805599453


def io_weight(weight: int) -> int:
    """``io.weight`` (1 to 10000) for a v1 blkio *weight* (10 to 1000)."""
    return 1 + (weight - 10) * 9999 // 990


def _block_io(block_io: BlockIO, json_path: str) -> Iterator[CgroupWrite]:
    if block_io.weight:
        yield _io_weight("", block_io.weight, f"{json_path}.weight")
    for index, device in enumerate(block_io.weight_devices):
        if device.weight:
            yield _io_weight(f"{device.major}:{device.minor} ", device.weight, f"{json_path}.weightDevice[{index}]")
    for member, key, field in _THROTTLES:
        for index, throttle in enumerate(getattr(block_io, field)):
            value = f"{throttle.major}:{throttle.minor} {key}={throttle.rate or 'max'}"
            yield CgroupWrite("io.max", value, f"{json_path}.{member}[{index}]")


def _io_weight(device: str, weight: int, json_path: str) -> CgroupWrite:
    """BFQ takes the weight as it is; without BFQ it is the weight of the io.cost model, converted."""
    io_cost = CgroupWrite("io.weight", f"{device}{io_weight(weight)}", json_path)
    return CgroupWrite("io.bfq.weight", f"{device}{weight}", json_path, otherwise=io_cost)


def _hugepages(limit: HugepageLimit, sizes: Collection[str] | None, json_path: str) -> Iterator[CgroupWrite]:
    if sizes is not None and limit.size not in sizes:
        have = ", ".join(sorted(sizes)) or "none"
        raise ConfigError(f"{json_path}.pageSize", f"this kernel has no huge pages of {limit.size} (it has: {have})")
    # Clients write "no limit" as the largest number; the kernel's counters hold less than 2**63.
    value = "max" if limit.limit >= (1 << 63) - 1 else str(limit.limit)
    yield CgroupWrite(f"hugetlb.{limit.size}.max", value, f"{json_path}.limit")
    yield CgroupWrite(f"hugetlb.{limit.size}.rsvd.max", value, f"{json_path}.limit", (ENOENT,))


def _rdma(device: str, rdma: Rdma, json_path: str) -> Iterator[CgroupWrite]:
    limits = [
        f"{key}={value}" for key, value in (("hca_handle", rdma.handles), ("hca_object", rdma.objects)) if value is not None
    ]
    if limits:
        yield CgroupWrite("rdma.max", f"{device} {' '.join(limits)}", json_path)
