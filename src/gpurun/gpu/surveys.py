"""Which GPUs a maker's driver has and how they are used, and never for long, where no NVML tells it.

The driver tells it in files of sysfs and procfs.  One that hangs holds whoever reads these, maybe for good, so a helper
process (:mod:`gpurun.gpu.survey_process`) reads them, started as :mod:`gpurun.gpu.host.helper` does.
"""

from __future__ import annotations

import marshal

from gpurun.errors import GpuError, oserror_text
from gpurun.gpu.device import Survey
from gpurun.gpu.host import helper, reads  # noqa: F401 - HostNode is in what the helper answers
from gpurun.launcher.fresh_interpreter import SURVEY_ENTRY
from gpurun.record import Record, from_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpurun.gpu.vendors import Vendor

#: Seconds that a driver may take, and that the helper has beyond them to start and to answer.
TIMEOUT_S = 10.0
_START_S = 10.0
_CANNOT = "'s GPUs cannot be read: "


class SurveyQuestion(Record):
    """What is asked of the helper: the GPUs of *vendor* below *sysroot*, within *seconds*.

    With *ask* how they are used as well, with *more* the nodes for other uses than computing.
    """

    vendor: str
    sysroot: str
    seconds: float
    ask: bool = True
    more: bool = False


def limited_survey(row: Vendor, own_env: Mapping[str, str], ask: bool = True, more: bool = False) -> Survey:
    """The survey of the room of *row*, which reads no other variable of *own_env* than GPURUN_SYSROOT.

    ``problem`` says why it is not known how the GPUs are used, if they are *ask*-ed for that.  Raises :class:`GpuError` in a
    sentence where the driver does not tell which GPUs it has.
    """
    key = f"{SURVEY_ENTRY} {row.name}"
    if helper.is_held(key):
        raise GpuError(f"{row.title}{_CANNOT}the kernel still holds the process that has asked before")
    question = SurveyQuestion(row.name, own_env.get("GPURUN_SYSROOT", "").rstrip("/"), TIMEOUT_S, ask, more)
    limit = TIMEOUT_S + _START_S
    try:
        answer = helper.ask(SURVEY_ENTRY, words_of(question), limit, key)
    except OSError as e:
        raise GpuError(f"{row.title}{_CANNOT}{oserror_text(e)}") from None
    if answer.data is None:
        raise GpuError(f"{row.title}{_CANNOT}the process that asks its driver has not answered within {limit:g} s")
    try:
        found = from_wire(marshal.loads(answer.data))
    except (EOFError, ValueError, TypeError, KeyError):
        found = f"the process that asks its driver ended with status {answer.status}"
    if not isinstance(found, Survey):
        raise GpuError(f"{row.title}{_CANNOT}{found}")
    return found


def is_silence(text: str) -> bool:
    """Whether *text* is of an error that :func:`limited_survey` has raised."""
    return _CANNOT in text


def parse(words: Sequence[str]) -> SurveyQuestion:
    """The question in the *words* of a command line, as :func:`words_of` has made them."""
    vendor, sysroot, seconds, ask, more = words
    return SurveyQuestion(vendor, sysroot, float(seconds), bool(ask), bool(more))


def words_of(question: SurveyQuestion) -> tuple[str, ...]:
    """*question* as words of a command line."""
    flags = ["y" if flag else "" for flag in (question.ask, question.more)]
    return (question.vendor, question.sysroot, str(question.seconds), *flags)
