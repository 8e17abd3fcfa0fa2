"""What of ``process`` and ``linux`` sets the process' scheduling and memory placement → :class:`Knobs`; pure.
Imported only for configs that ask for any of it.

runtime-spec config.md "Linux Process" (scheduler, ioPriority, execCPUAffinity), config-linux.md "Personality", "Memory
Policy".
"""

from __future__ import annotations

from gpurun.decimals import MAX_CPUS, bit_mask, number_list
from gpurun.engine.plan.records import Knobs
from gpurun.errors import ConfigError
from gpurun.linux import sched
from gpurun.oci.reader import child, get_int, get_string, get_strings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.oci.config import Linux, Process

#: sched(7) policies by the specification's names.  ISO is reserved and in no kernel.
SCHED_POLICIES = {
    "SCHED_OTHER": 0,
    "SCHED_FIFO": 1,
    "SCHED_RR": 2,
    "SCHED_BATCH": 3,
    "SCHED_ISO": 4,
    "SCHED_IDLE": 5,
    "SCHED_DEADLINE": 6,
}
SCHED_FLAGS = {
    "SCHED_FLAG_RESET_ON_FORK": 0x01,
    "SCHED_FLAG_RECLAIM": 0x02,
    "SCHED_FLAG_DL_OVERRUN": 0x04,
    "SCHED_FLAG_KEEP_POLICY": 0x08,
    "SCHED_FLAG_KEEP_PARAMS": 0x10,
    "SCHED_FLAG_UTIL_CLAMP_MIN": 0x20,
    "SCHED_FLAG_UTIL_CLAMP_MAX": 0x40,
}
IOPRIO_CLASSES = {"IOPRIO_CLASS_RT": 1, "IOPRIO_CLASS_BE": 2, "IOPRIO_CLASS_IDLE": 3}
PERSONALITIES = {"LINUX": 0, "LINUX32": 0x0008}
MEMORY_POLICIES = {
    "MPOL_DEFAULT": 0,
    "MPOL_PREFERRED": 1,
    "MPOL_BIND": 2,
    "MPOL_INTERLEAVE": 3,
    "MPOL_LOCAL": 4,
    "MPOL_PREFERRED_MANY": 5,
    "MPOL_WEIGHTED_INTERLEAVE": 6,
}
MEMORY_POLICY_FLAGS = {
    "MPOL_F_STATIC_NODES": 1 << 15,
    "MPOL_F_RELATIVE_NODES": 1 << 14,
    "MPOL_F_NUMA_BALANCING": 1 << 13,
}
_MIN_DEADLINE_RUNTIME = 1024  # nanoseconds; the kernel counts in units of 2^10


def plan_knobs(process: Process, linux: Linux | None) -> tuple[Knobs, tuple[str, ...]]:
    """The knobs of *process* and, for the container's first process, of *linux*; and warnings.

    Raises :class:`ConfigError` for unknown names and values that the kernel could only refuse.  Returns (knobs, warnings).
    """
    warnings: tuple[str, ...] = ()
    persona = policy = None
    if linux is not None and linux.personality is not None:
        persona, warnings = _personality(linux.personality)
    if linux is not None and linux.memory_policy is not None:
        policy = _memory_policy(linux.memory_policy)
    return Knobs(
        scheduler=None if process.scheduler is None else _scheduler(process.scheduler, "process.scheduler"),
        io_priority=None if process.io_priority is None else _io_priority(process.io_priority, "process.ioPriority"),
        personality=persona,
        memory_policy=policy,
    ), warnings


def exec_affinity(process: Process) -> tuple[bytes, bytes]:
    """``execCPUAffinity`` as CPU masks (initial, final), empty for none: what ``exec`` runs on before and after it has
    entered the container's cgroup.  The container's first process has no part in it (config.md)."""
    if process.exec_cpu_affinity is None:
        return b"", b""
    at = "process.execCPUAffinity"
    masks = [
        bit_mask(_numbers(get_string(process.exec_cpu_affinity, key, at), child(at, key))) for key in ("initial", "final")
    ]
    return masks[0], masks[1]


def _numbers(text: str, json_path: str) -> frozenset[int]:
    """The CPUs or memory nodes that the list *text* names.  Raises :class:`ConfigError` at *json_path* for anything else."""
    numbers = number_list(text) if text else frozenset()
    if numbers is None:
        raise ConfigError(json_path, f'"{text}" is not a list of numbers below {MAX_CPUS} like 0-3,7')
    return numbers


def _look_up(table: dict[str, int], name: str, json_path: str) -> int:
    if name not in table:
        raise ConfigError(json_path, f'"{name}" is unknown, it must be one of {", ".join(table)}')
    return table[name]


def _flags(obj: dict[str, Any], table: dict[str, int], json_path: str) -> int:
    flags = 0
    for i, name in enumerate(get_strings(obj, "flags", json_path)):
        flags |= _look_up(table, name, f"{json_path}.flags[{i}]")
    return flags


def _scheduler(obj: dict[str, Any], json_path: str) -> tuple[int, int, int, int, int, int, int]:
    name = get_string(obj, "policy", json_path)
    if not name:
        raise ConfigError(f"{json_path}.policy", "is missing, scheduler policy is required")
    policy = _look_up(SCHED_POLICIES, name, f"{json_path}.policy")
    nice = get_int(obj, "nice", json_path, -(1 << 31), (1 << 31) - 1) or 0
    priority = get_int(obj, "priority", json_path, -(1 << 31), (1 << 31) - 1) or 0
    if name in ("SCHED_OTHER", "SCHED_BATCH") and not -20 <= nice <= 19:
        raise ConfigError(f"{json_path}.nice", f"invalid scheduler.nice: {nice}, it must be from -20 to 19")
    if priority and name not in ("SCHED_FIFO", "SCHED_RR"):
        raise ConfigError(f"{json_path}.priority", "can only be specified for the SCHED_FIFO or SCHED_RR policy")
    if name in ("SCHED_FIFO", "SCHED_RR") and not 1 <= priority <= 99:
        raise ConfigError(f"{json_path}.priority", f"{priority} is out of range, {name} takes 1 to 99")
    times = []
    for key in ("runtime", "deadline", "period"):
        value = get_int(obj, key, json_path, 0) or 0
        if value and name != "SCHED_DEADLINE":
            raise ConfigError(f"{json_path}.{key}", "can only be specified for the SCHED_DEADLINE policy")
        times.append(value)
    if name == "SCHED_DEADLINE":
        _check_deadline(times[0], times[1], times[2], json_path)
    return (policy, _flags(obj, SCHED_FLAGS, json_path), nice, priority, times[0], times[1], times[2])


def _check_deadline(runtime: int, deadline: int, period: int, json_path: str) -> None:
    """What the kernel says of SCHED_DEADLINE in one word, EINVAL (sched(7)); all times are nanoseconds."""
    for key, value in (("runtime", runtime), ("deadline", deadline)):
        if not value:
            raise ConfigError(f"{json_path}.{key}", "is missing, SCHED_DEADLINE takes a runtime and a deadline")
    if runtime < _MIN_DEADLINE_RUNTIME:
        raise ConfigError(f"{json_path}.runtime", f"{runtime} ns is too short, the least is {_MIN_DEADLINE_RUNTIME} ns")
    if runtime > deadline or (period and deadline > period):
        times = f"runtime {runtime}, deadline {deadline}, period {period or 'that of the deadline'}"
        raise ConfigError(json_path, f"the runtime must not exceed the deadline, nor the deadline the period: {times}")


def _io_priority(obj: dict[str, Any], json_path: str) -> int:
    number = _look_up(IOPRIO_CLASSES, get_string(obj, "class", json_path), f"{json_path}.class")
    level = get_int(obj, "priority", json_path)
    if level is not None and not 0 <= level <= 7:
        raise ConfigError(f"{json_path}.priority", f"{level} is out of range, it must be from 0 to 7")
    return number << sched.IOPRIO_CLASS_SHIFT | (level or 0)


def _personality(obj: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
    json_path = "linux.personality"
    persona = _look_up(PERSONALITIES, get_string(obj, "domain", json_path), f"{json_path}.domain")
    # The specification defines no flag yet; runc warns, and so must a runtime whose configs it shares.
    flags = get_strings(obj, "flags", json_path)
    return persona, (f"ignoring unsupported personality flags: {', '.join(flags)}",) if flags else ()


def _memory_policy(obj: dict[str, Any]) -> tuple[int, int]:
    json_path = "linux.memoryPolicy"
    name = get_string(obj, "mode", json_path)
    mode = _look_up(MEMORY_POLICIES, name, f"{json_path}.mode")
    nodes = _numbers(get_string(obj, "nodes", json_path), f"{json_path}.nodes")
    if name in ("MPOL_DEFAULT", "MPOL_LOCAL") and nodes:
        raise ConfigError(f"{json_path}.nodes", f"{name} takes no nodes")
    if name not in ("MPOL_DEFAULT", "MPOL_LOCAL", "MPOL_PREFERRED") and not nodes:
        raise ConfigError(f"{json_path}.nodes", f"{name} needs at least one node")
    flags = _flags(obj, MEMORY_POLICY_FLAGS, json_path)
    both = MEMORY_POLICY_FLAGS["MPOL_F_STATIC_NODES"] | MEMORY_POLICY_FLAGS["MPOL_F_RELATIVE_NODES"]
    if flags & both == both:
        raise ConfigError(f"{json_path}.flags", "MPOL_F_STATIC_NODES and MPOL_F_RELATIVE_NODES exclude each other")
    return mode | flags, int.from_bytes(bit_mask(nodes), "little")
