"""What callers of the library give, checked."""

from __future__ import annotations

from gpurun.errors import GpurunError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class ArgumentError(GpurunError, TypeError):
    """An argument of the library has a type that it cannot have."""


def words(value: Sequence[str], name: str) -> tuple[str, ...]:
    """A command line of one word or more; raises :class:`ArgumentError` for anything else, such as one string."""
    if isinstance(value, str | bytes):
        raise ArgumentError(f"{name} is one string, and must be a sequence of them: shlex.split() makes one")
    found = tuple(value)
    if not found or not all(isinstance(word, str) for word in found):
        raise ArgumentError(f"{name} must be a sequence of one string or more")
    if any("\0" in word for word in found):
        raise ArgumentError(f"{name} has a NUL character, which no argument of a program can have")
    return found
