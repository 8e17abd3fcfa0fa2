"""What takes back a container that is half made, so that nothing of it is left when create or restore fails.

The order in which things are taken back is written here, once: who makes a thing only says which of these it is.
"""

from __future__ import annotations

from gpurun import log
from gpurun.errors import error_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[], None]

#: The stages, in the order in which they are taken back.  Processes end before what they use goes, a cgroup before the
#: CPUs that were lent to it, and the image is put in order when nothing is mounted over it any more.
(
    STARTER,
    PROCESSES,
    RESCTRL,
    ROOT_MOUNT,
    PLACEHOLDER,
    CGROUP,
    EXCLUSIVE_CPUS,
    ROOTFS,
    CHECKPOINT,
    STATE_DIRECTORY,
    POSTSTOP_HOOKS,
) = range(11)
_LAST = (STATE_DIRECTORY, POSTSTOP_HOOKS)


class Rollback:
    """Steps that each take back one thing.

    A container that could not be taken back whole is not forgotten: ``delete --force`` needs its state directory for what
    is left, and runs its poststop hooks.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[int, Step]] = []

    def add(self, stage: int, step: Step) -> None:
        """Have *step* taken in *stage* (one of the names above), before those that were added to that stage until now."""
        self._steps.insert(0, (stage, step))

    def forget(self, stage: int) -> None:
        """What belongs to *stage* has been taken back, or is to stay."""
        self._steps = [(its, step) for its, step in self._steps if its != stage]

    def take_back(self, container_id: str) -> None:
        """Take all steps; the error that made it necessary is the one to raise, so what fails here is a warning."""
        failed: list[str] = []
        for stage, step in sorted(self._steps, key=_stage):
            if not (failed and stage in _LAST) and (text := _failure(step)):
                failed.append(text)
        for text in failed:
            log.warning(f"while undoing what create had made: {text}")
        if failed:
            log.warning(f"container {container_id} is left half made: delete --force removes it")


def _stage(step: tuple[int, Step]) -> int:
    return step[0]


def _failure(step: Step) -> str:
    """Take *step*; returns what went wrong, "" for nothing."""
    try:
        step()
    except Exception as e:
        return error_text(e)
    return ""
