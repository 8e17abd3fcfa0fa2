"""What the GPUs of other makers than the one with NVML do now, and never for long.

Their drivers tell it in files of sysfs and procfs.  A driver that hangs holds whoever reads these, maybe for good, so a
helper process (:mod:`gpurun.gpu.readings_process`) reads them, started as :mod:`gpurun.gpu.host.helper` does.
"""

from __future__ import annotations

import marshal
import time

from gpurun.errors import GpuError, oserror_text
from gpurun.gpu.device import Reading
from gpurun.gpu.host import helper
from gpurun.gpu.readings_process import Readings, ReadingsQuestion, words_of
from gpurun.gpu.vendors import present
from gpurun.launcher.fresh_interpreter import READINGS_ENTRY
from gpurun.record import from_wire, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Seconds that the helper has beyond those of the question, to start and to answer.
_START_S = 10.0
#: Seconds for which what did not answer is not asked again.
RETRY_S = 60.0


def makers(own_env: Mapping[str, str]) -> tuple[str, ...]:
    """The makers with such readings whose driver this host has; *own_env* is gpurun's environment (GPURUN_SYSROOT)."""
    return tuple([row.name for row in present(own_env) if row.readings])


def read(question: ReadingsQuestion) -> Readings:
    """The answer to *question*.

    Raises :class:`GpuError` in a sentence when there is no helper, or none that answers.
    """
    try:
        answer = helper.ask(READINGS_ENTRY, words_of(question), question.seconds + _START_S)
    except OSError as e:
        raise GpuError(f"the GPUs' drivers cannot be asked: {oserror_text(e)}") from None
    if answer.data is None:
        raise GpuError(f"the process that asks the GPUs' drivers has not answered within {question.seconds + _START_S:g} s")
    try:
        found = from_wire(marshal.loads(answer.data))
    except (EOFError, ValueError, TypeError, KeyError):
        found = None
    if not isinstance(found, Readings):
        raise GpuError(f"the process that asks the GPUs' drivers ended with status {answer.status}")
    return found


class Readers:
    """Asks time and again; of what did not answer it asks again after RETRY_S seconds.

    *say* is called once for each problem.  *seconds* is what the drivers have for an answer.  One thread may use it at a
    time.
    """

    def __init__(
        self, own_env: Mapping[str, str], seconds: float, say: Callable[[str], None], figures: bool = False
    ) -> None:
        self._env, self._seconds, self._say, self._figures = own_env, seconds, say, figures
        self._until: dict[str, float] = {}
        self._problems: dict[str, str] = {}
        self._said: set[str] = set()

    def read(self) -> Readings:
        """What there is to know now; nothing where no helper answers."""
        vendors = makers(self._env)
        if not vendors or self._is_skipped(""):
            return Readings(())
        skipped = tuple([key for key in list(self._until) if self._is_skipped(key)])
        sysroot = self._env.get("GPURUN_SYSROOT", "").rstrip("/")
        try:
            found = read(ReadingsQuestion(sysroot, vendors, self._seconds, self._figures, skipped))
        except GpuError as e:
            self._until[""] = time.monotonic() + RETRY_S
            self._tell(str(e))
            return Readings(())
        for key in set(found.silent) - set(skipped):
            self._until[key] = time.monotonic() + RETRY_S
        measured = []
        for one in found.measured:
            problem = one.reading.problem
            if problem and one.unit.gpu_key in skipped:  # what it was not asked for again
                problem = self._problems.get(one.unit.gpu_key, problem)
            elif problem:
                self._problems[one.unit.gpu_key] = problem
                self._tell(f"{one.unit.label} ({one.unit.gpu_key}): {problem}")
            measured.append(replace(one, reading=replace(one.reading, problem=problem)) if problem else one)
        for problem in found.problems:
            self._tell(problem)
        return replace(found, measured=tuple(measured))

    def _is_skipped(self, key: str) -> bool:
        """Whether *key* is not asked now: for a while, and as long as the kernel holds a helper that has asked."""
        until = self._until.get(key)
        if until is None:
            return False
        if time.monotonic() < until or helper.is_held(READINGS_ENTRY):
            return True
        del self._until[key]
        return False

    def _tell(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)


def once(own_env: Mapping[str, str], seconds: float, say: Callable[[str], None]) -> Mapping[tuple[str, str], Reading]:
    """(maker, key) → the reading of each GPU, within *seconds*; *say* is called with what is not known."""
    found = Readers(own_env, seconds, say).read()
    return {(one.unit.vendor, one.unit.key): one.reading for one in found.measured}
