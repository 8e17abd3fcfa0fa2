"""Scheduling of a process: policy, I/O priority, CPU affinity, NUMA memory policy, personality."""

from __future__ import annotations

from _struct import pack

from gpurun.linux.libc import NR, syscall

IOPRIO_WHO_PROCESS = 1
IOPRIO_CLASS_SHIFT = 13

#: More CPUs than any kernel is built for: sched_setaffinity(2) ignores the bits of those that are not there.
_ALL_CPUS = b"\xff" * 1024


def sched_setattr(
    policy: int,
    flags: int = 0,
    nice: int = 0,
    priority: int = 0,
    runtime: int = 0,
    deadline: int = 0,
    period: int = 0,
    pid: int = 0,
) -> None:
    """sched_setattr(2) of *pid*, 0 is this process; *runtime*, *deadline*, *period* in nanoseconds."""
    attr = pack("IIQiIQQQII", 56, policy, flags, nice, priority, runtime, deadline, period, 0, 0)
    syscall(NR["sched_setattr"], pid, attr, 0)


def sched_setaffinity(mask: bytes) -> None:
    """sched_setaffinity(2) of this process: *mask* has CPU 0 in bit 0 of its first byte."""
    padded = mask + b"\0" * (-len(mask) % 8)
    syscall(NR["sched_setaffinity"], 0, len(padded), padded)


def reset_affinity() -> None:
    """Let this process run on every CPU that its cgroup allows."""
    try:
        sched_setaffinity(_ALL_CPUS)
    except OSError:
        pass  # a sandbox around us forbids the call: then what was inherited stays, which is what it wants


def ioprio_set(priority: int) -> None:
    """ioprio_set(2) of this process: class << IOPRIO_CLASS_SHIFT | level."""
    syscall(NR["ioprio_set"], IOPRIO_WHO_PROCESS, 0, priority)


def personality(persona: int) -> None:
    """personality(2) of this process and what it becomes."""
    syscall(NR["personality"], persona)


def set_mempolicy(mode: int, nodes: int) -> None:
    """set_mempolicy(2): *mode* with its MPOL_F_* flags, *nodes* a bit mask of NUMA nodes (0 for none)."""
    if not nodes:
        syscall(NR["set_mempolicy"], mode, None, 0)
        return
    size = -(-nodes.bit_length() // 64) * 8
    # The kernel takes one bit less than it is given (set_mempolicy(2), "maxnode").
    syscall(NR["set_mempolicy"], mode, nodes.to_bytes(size, "little"), size * 8 + 1)
