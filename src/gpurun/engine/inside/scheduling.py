"""Setting the scheduling and memory placement of the process we are.  Imported only for configs that ask for any of it."""

from __future__ import annotations

from gpurun.engine.scheduler import apply_scheduler, lost_by_fork
from gpurun.errors import Step
from gpurun.linux import sched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.plan.records import Knobs


def apply_knobs(knobs: Knobs, born_with: bool = False) -> None:
    """Set the knobs on this process, which must still have its privileges; raises :class:`GpurunError`.

    *born_with*: they are for a child to be born with, but for a scheduler that it would not get (:func:`lost_by_fork`).
    """
    if knobs.scheduler is not None and not (born_with and lost_by_fork(knobs.scheduler)):
        apply_scheduler(knobs.scheduler)
    if knobs.io_priority is not None:
        with Step("set", "process.ioPriority"):
            sched.ioprio_set(knobs.io_priority)
    if knobs.personality is not None:
        with Step("set", "linux.personality"):
            sched.personality(knobs.personality)
    if knobs.memory_policy is not None:
        with Step("set", "linux.memoryPolicy (has this host these nodes?)"):
            sched.set_mempolicy(*knobs.memory_policy)
