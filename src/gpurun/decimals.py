"""Numbers in texts that are not ours.

``int`` takes blanks, signs, underscores and the digits of other scripts as well, and of thousands of digits it makes an
error that no caller expects.
"""

from __future__ import annotations

_MAX_DIGITS = 20  # of a number of 64 bits
#: As many CPUs as Linux can be built for, and far more than it has memory nodes.
MAX_CPUS = 8192


def decimal(text: str, most: int = (1 << 64) - 1) -> int | None:
    """The number that *text* is, in ASCII digits and nothing else; ``None`` for other text, and for more than *most*."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        return None
    value = int(text)
    return value if value <= most else None


def number_list(text: str) -> frozenset[int] | None:
    """The numbers of a list of CPUs or memory nodes like ``0-3,7`` (cpuset(7), "List format").

    ``None`` for other text, an empty one and numbers from :data:`MAX_CPUS` on included.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = decimal(first, MAX_CPUS - 1), decimal(last if dash else first, MAX_CPUS - 1)
        if low is None or high is None or low > high:
            return None
        numbers.update(range(low, high + 1))
    return frozenset(numbers)


def bit_mask(numbers: frozenset[int]) -> bytes:
    """*numbers* as a bit mask, in which byte 0 holds the numbers 0 to 7: what sched_setaffinity(2) and systemd take."""
    mask = sum([1 << number for number in numbers])
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")
