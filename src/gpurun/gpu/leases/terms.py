"""The end of the time that a lease was given for: what is logged, when, and which signals the container gets.

Nothing runs in the background.  ``gpurun gpu leases --expire`` (a timer of systemd calls it) and each request for free GPUs
look at the leases of their directory and take the next step of those whose time has come: warn, say that the time is over,
and where the site wants it SIGTERM and, a grace period later, SIGKILL.  A step is noted in the lease before it is taken, so
it is taken once; one that was cut short is followed by the next.

Times are nanoseconds of CLOCK_BOOTTIME (clock_gettime(2)): a lease ends with the boot anyway, and a clock that is set has no
say in it.
"""

from __future__ import annotations

import posix
import time

from gpurun import log
from gpurun.errors import ConfigError, GpurunError, clean, oserror_text
from gpurun.gpu.leases.liveness import is_cgroup, open_process, own_pid_namespace
from gpurun.gpu.vendors import place
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.gpu.leases.lease import Lease
    from gpurun.gpu.leases.policy import LeasePolicy
    from gpurun.gpu.leases.store import Store
    from gpurun.gpu.request.free import FreeRequest

#: The steps, as ``stage`` of a lease has them.
WARNED, OVER, TERMINATED, KILLED = "warned", "over", "SIGTERM", "SIGKILL"
_S = 10**9
_SIGTERM, _SIGKILL = 15, 9


def now() -> int:
    """The time that leases are measured by."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def end_time(request: FreeRequest, policy: LeasePolicy, source: str) -> int:
    """When a lease for *request* ends that begins now; 0: with its container.

    Raises :class:`ConfigError` where the site allows less.
    """
    if policy.longest and request.longest > policy.longest:
        text = f"'{clean(request.text)}': the site leases GPUs for {format_duration(policy.longest)} at the most"
        raise ConfigError(place(source), f"{text}: ask for<={format_duration(policy.longest)}, or for less")
    seconds = request.longest or policy.longest
    return now() + int(seconds * _S) if seconds else 0


def due_step(lease: Lease, moment: int, policy: LeasePolicy) -> str:
    """The step that is due for *lease* at *moment*; empty for none.  Pure."""
    if not lease.until or lease.kind == "released":
        return ""
    if moment < lease.until:
        return WARNED if not lease.stage and moment >= lease.until - int(policy.warn * _S) else ""
    # Only its GPUs were leased to a container that ran already: it is not ended for them.
    if policy.at_end == "tell" or lease.part or not lease.pid:
        return OVER if lease.stage in ("", WARNED) else ""
    if lease.stage in ("", WARNED, OVER):
        return TERMINATED
    if lease.stage == TERMINATED and moment >= lease.stage_at + int(policy.grace * _S):
        return KILLED
    return ""


def expire(store: Store, policy: LeasePolicy, send: Callable[[int, int], None]) -> int:
    """Take the steps that are due, each with a warning in the log; returns how many.

    *send* is as pidfd_send_signal(2).  Raises :class:`GpurunError`."""
    if not any(due_step(lease, now(), policy) for lease in store.own_leases()):
        return 0
    taken = 0
    with store:
        for lease in store.own_leases():
            moment = now()
            step = due_step(lease, moment, policy)
            if not step:
                continue
            store.save(replace(lease, stage=step, stage_at=moment))
            taken += 1
            log.warning(_warning(lease, step, moment, policy))
            if step in (TERMINATED, KILLED):
                _send(lease, step, send)
    return taken


def _warning(lease: Lease, step: str, moment: int, policy: LeasePolicy) -> str:
    gpus = ", ".join([str(unit.index) for unit in lease.units])
    text = f"the lease of GPU {gpus} by {clean(lease.label)}"
    if step == WARNED:
        then = "its container is ended then" if policy.at_end == "end" and not lease.part else "its container goes on then"
        return f"{text} ends in {format_duration(max(lease.until - moment, 0) / _S)}: {then}"
    if step == OVER:
        return f"{text} is over: the container goes on, and keeps the GPU"
    if step == TERMINATED:
        return f"{text} is over: its container gets SIGTERM, and SIGKILL in {format_duration(policy.grace)}"
    return f"{text} is over: its container gets SIGKILL, {format_duration((moment - lease.stage_at) / _S)} after SIGTERM"


def _send(lease: Lease, step: str, send: Callable[[int, int], None]) -> None:
    """Send the signal to the init; SIGKILL to all processes of the cgroup, where others outlive the init."""
    if lease.pid_namespace != own_pid_namespace():
        log.warning(f"{clean(lease.label)} is in another pid namespace: no signal can be sent to it")
        return
    try:
        if step == KILLED and is_cgroup(lease.cgroup, lease.cgroup_inode):
            fd = posix.open(f"{lease.cgroup}/cgroup.kill", posix.O_WRONLY | posix.O_CLOEXEC)
            try:
                posix.write(fd, b"1")
                return
            finally:
                posix.close(fd)
        pidfd = open_process(lease.pid, lease.start_time)
        if pidfd < 0:
            return
        try:
            send(pidfd, _SIGKILL if step == KILLED else _SIGTERM)
        finally:
            posix.close(pidfd)
    except ProcessLookupError:
        pass  # it has ended by itself
    except (OSError, GpurunError) as e:
        why = oserror_text(e) if isinstance(e, OSError) else str(e)
        log.warning(f"{clean(lease.label)} could not be sent {step}: {why}")


def format_duration(seconds: float) -> str:
    """A duration as people write it: ``4h``, ``90m``, ``30s``."""
    whole = round(seconds)
    for unit, size in (("h", 3600), ("m", 60)):
        if whole >= size and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def clock_time(moment: int) -> int:
    """*moment* of CLOCK_BOOTTIME as nanoseconds since 1970."""
    return moment - now() + time.time_ns()
