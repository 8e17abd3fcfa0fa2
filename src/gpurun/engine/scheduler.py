"""``process.scheduler``: set by the process itself, or by its parent where it would be lost at its birth."""

from __future__ import annotations

from gpurun.errors import GpurunError, StepError
from gpurun.linux import sched

TYPE_CHECKING = False
if TYPE_CHECKING:
    Scheduler = tuple[int, int, int, int, int, int, int]  # of Knobs in engine/plan/records.py

_SCHED_DEADLINE, _RESET_ON_FORK = 6, 0x01


def lost_by_fork(scheduler: Scheduler) -> bool:
    """Whether a child would not have it: sched(7), "Resetting scheduling policy for child processes", "SCHED_DEADLINE"."""
    return scheduler[0] == _SCHED_DEADLINE or bool(scheduler[1] & _RESET_ON_FORK)


def apply_scheduler(scheduler: Scheduler, pid: int = 0) -> None:
    """Set it for the process *pid*, 0 is this one; raises :class:`GpurunError`."""
    try:
        sched.sched_setattr(*scheduler, pid=pid)
    except PermissionError:
        raise GpurunError(
            "cannot set process.scheduler: operation not permitted; a real-time policy needs CAP_SYS_NICE on the host, "
            "and SCHED_DEADLINE cannot be used together with linux.resources.cpu.cpus"
        ) from None
    except OSError as e:
        raise StepError("set", "process.scheduler", e.errno) from None
