"""``free:2;memory>=20GiB;product=A100*;nvlink``: a request for GPUs that are free, whichever they are.  Pure.

The grammar: ``free``, a colon and how many (1 unless said), then conditions, each after a semicolon.  Blanks do not count.

    memory>=20GiB   its whole memory; also > < <= = and the units KiB to TiB, kB to TB, or bytes without one
    product=A100*   its model, a pattern as of a shell, upper and lower case alike, the maker before it or not; also !=
    nvlink          those chosen are connected with each other by NVLink
    vendor=amd      of that maker, whichever variable asks
    for<=4h         for that long at the most (s, m, h, d); what comes then is the site's choice
    profile=1g.10gb MIG devices of that profile instead of whole GPUs
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.errors import ConfigError, clean
from gpurun.formats.globs import matches
from gpurun.gpu.vendors import NAMES, VENDORS, is_free, place
from gpurun.record import Record

#: No host has more GPUs and MIG devices than that.
MAX_COUNT = 128

_UNITS = {
    "": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
}  # fmt: skip
_COMPARISONS = (">=", "<=", ">", "<", "=")
_KNOWN = "memory>=20GiB, product=A100*, nvlink, profile=1g.10gb, vendor=" + NAMES[1] + " and for<=4h"
_MAKERS = tuple([f"{row.title.lower()} " for row in VENDORS])
_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_DAYS = 366


class FreeRequest(Record):
    """So many GPUs, or MIG devices with *profile*, that are free; *text* is how it was written.

    *memory* are comparisons with a number of bytes, *products* patterns, and whether the model is to fit.
    """

    text: str
    count: int = 1
    memory: tuple[tuple[str, int], ...] = ()
    products: tuple[tuple[str, bool], ...] = ()
    nvlink: bool = False
    profile: str = ""
    longest: int = 0  # seconds; 0: as long as its container
    vendor: str = ""
    source: str = ""  # where it was found

    def product_fits(self, model: str) -> bool:
        """Whether the request allows a GPU of that *model*."""
        name = model.lower()
        names = (name, *[name.removeprefix(maker) for maker in _MAKERS])
        return all(any(matches(n, pattern) for n in names) == wanted for pattern, wanted in self.products)

    def memory_fits(self, size: int) -> bool:
        """Whether the request allows a GPU with *size* bytes of memory."""
        return all(_holds(size, comparison, wanted) for comparison, wanted in self.memory)


def read_free_request(text: str, source: str, vendor: str = "") -> FreeRequest:
    """What *text* asks for, found at *source*, of *vendor* unless it names one.

    Raises :class:`ConfigError` that says what is wrong with it.
    """
    if not is_free(text):
        raise ConfigError(place(source), f"'{clean(text)}' does not ask for free GPUs")
    head, *conditions = [part.strip() for part in text.split(";")]
    count = head[len("free") :].strip()
    wanted = decimal(count[1:].strip(), MAX_COUNT) if count else 1
    if not wanted:
        what = f"'{clean(text)}': how many free GPUs are wanted must be a number from 1 to {MAX_COUNT}, such as free:2"
        raise ConfigError(place(source), what)
    memory: list[tuple[str, int]] = []
    products: list[tuple[str, bool]] = []
    nvlink, profile, longest = False, "", 0
    for condition in conditions:
        if condition.startswith("memory"):
            memory.append(_memory(condition, text, source))
        elif condition.startswith("product"):
            products.append(_product(condition, text, source))
        elif condition == "nvlink":
            nvlink = True
        elif condition.startswith("profile") and condition[7:].strip().startswith("="):
            profile = condition.partition("=")[2].strip().lower()
            if not profile:
                raise _bad(text, source, condition, "does not name a profile, write profile=1g.10gb")
        elif condition.startswith("vendor") and condition[6:].strip().startswith("="):
            vendor = condition.partition("=")[2].strip().lower()
            if vendor not in NAMES:
                raise _bad(text, source, condition, f"must be one of {', '.join(NAMES)}")
        elif condition.startswith("for") and condition[3:].strip().startswith("<="):
            longest = _duration(condition, text, source)
        elif condition:
            raise _bad(text, source, condition, f"is not a condition; known are {_KNOWN}")
    if nvlink and profile:
        raise _bad(text, source, "nvlink", "cannot be asked of MIG devices, which have none")
    return FreeRequest(text, wanted, tuple(memory), tuple(products), nvlink, profile, longest, vendor, source)


def _bad(text: str, source: str, condition: str, what: str) -> ConfigError:
    return ConfigError(place(source), f"'{clean(text)}': the condition '{clean(condition)}' {what}")


def _memory(condition: str, text: str, source: str) -> tuple[str, int]:
    rest = condition[len("memory") :].strip()
    for comparison in _COMPARISONS:
        if rest.startswith(comparison):
            size = read_size(rest[len(comparison) :])
            if size >= 0:
                return comparison, size
    raise _bad(text, source, condition, "does not compare with a size, write memory>=20GiB")


def _duration(condition: str, text: str, source: str) -> int:
    word = condition.partition("<=")[2].strip()
    number = decimal(word[:-1].strip(), _MAX_DAYS * 86400)
    seconds = (number or 0) * _TIMES.get(word[-1:], 0)
    if not 0 < seconds <= _MAX_DAYS * 86400:
        raise _bad(text, source, condition, f"is not a time from 1s to {_MAX_DAYS}d, write for<=4h")
    return seconds


def read_size(text: str) -> int:
    """*text* (``8GiB``, ``512 MB``, or bytes) as bytes; -1 for a text that is not a size."""
    size = text.strip()
    digits = size.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = size[len(digits) :].strip().lower()
    number = decimal(digits)
    return -1 if number is None or unit not in _UNITS else number * _UNITS[unit]


def _product(condition: str, text: str, source: str) -> tuple[str, bool]:
    rest = condition[len("product") :].strip()
    wanted = rest.startswith("=")
    pattern = rest[1:].strip() if wanted else rest[2:].strip()
    if not pattern or not (wanted or rest.startswith("!=")):
        raise _bad(text, source, condition, "does not name a product, write product=A100*")
    return pattern.lower(), wanted


def _holds(size: int, comparison: str, wanted: int) -> bool:
    if comparison == ">=":
        return size >= wanted
    if comparison == "<=":
        return size <= wanted
    if comparison == ">":
        return size > wanted
    return size < wanted if comparison == "<" else size == wanted
