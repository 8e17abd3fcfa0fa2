"""A share of a GPU, as a container asks for it: so much of its memory, so many percent of its threads.  Pure.

By annotation, ``dev.gpurun.gpu.memory=8GiB`` and ``dev.gpurun.gpu.threads=50%``, or by the variables GPURUN_GPU_MEMORY and
GPURUN_GPU_THREADS.  An annotation goes before the variable: an image can set variables, and only who runs it annotations.
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.errors import ConfigError, clean
from gpurun.gpu.request.free import read_size
from gpurun.oci.annotations import GPU_MEMORY, GPU_THREADS
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_MIB = 1 << 20
#: MPS counts in MiB, and one context takes some hundred of them; the upper bound is above all there is.
MIN_MEMORY, MAX_MEMORY = 64 * _MIB, 1 << 44
MEMORY, THREADS = "memory", "threads"
_VARIABLES = {MEMORY: "GPURUN_GPU_MEMORY", THREADS: "GPURUN_GPU_THREADS"}
_ANNOTATIONS = {MEMORY: GPU_MEMORY, THREADS: GPU_THREADS}


class Share(Record):
    """*memory* in bytes, whole MiB (0: none is named), *threads* in percent (0: none is named).

    *source* is the place in config.json that it was found at, *by_variable* whether a variable has any part in it.
    """

    memory: int = 0
    threads: int = 0
    source: str = ""
    by_variable: bool = False

    @property
    def text(self) -> str:
        """``8 GiB, 50 %``: as sentences and tables have it."""
        return share_text(self.memory, self.threads)


def share_text(memory: int, threads: int) -> str:
    """A share in words: *memory* in bytes, *threads* in percent, each 0 where it is not named."""
    parts = [f"{memory / (1 << 30):.4g} GiB"] if memory else []
    return ", ".join([*parts, *([f"{threads} %"] if threads else [])])


def read_share(env: tuple[str, ...], annotations: Mapping[str, str]) -> Share | None:
    """The share that is asked for, None for none; raises :class:`ConfigError` for a value that cannot be right.

    An empty value asks for nothing; of variables of one name the last one counts.
    """
    variables = dict([e.partition("=")[::2] for e in env if e.startswith(tuple(_VARIABLES.values()))])
    found: dict[str, tuple[str, str]] = {}
    by_variable = False
    for name, variable in _VARIABLES.items():
        key = _ANNOTATIONS[name]
        if key in annotations:
            found[name] = (annotations[key].strip(), f"annotations.{key}")
        elif variables.get(variable, "").strip():
            found[name] = (variables[variable].strip(), f"process.env {variable}")
            by_variable = True
    found = {name: value for name, value in found.items() if value[0]}
    if not found:
        return None
    memory = _memory(*found[MEMORY]) if MEMORY in found else 0
    threads = _threads(*found[THREADS]) if THREADS in found else 0
    return Share(memory, threads, next(iter(found.values()))[1], by_variable)


def _memory(value: str, where: str) -> int:
    size = read_size(value)
    if not MIN_MEMORY <= size <= MAX_MEMORY:
        raise ConfigError(where, f"'{clean(value)}' must be an amount of the GPU's memory from 64MiB to 16TiB, such as 8GiB")
    return size // _MIB * _MIB


def _threads(value: str, where: str) -> int:
    percent = decimal(value.removesuffix("%").strip(), 100)
    if not percent:
        raise ConfigError(where, f"'{clean(value)}' must be a part of the GPU's threads from 1% to 100%")
    return percent
