"""The record of ``strace -f -ttt -T``: one line a system call → records; pure (strace(1))."""

from __future__ import annotations

from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Call(Record):
    """A system call of process *pid*: *at* in seconds since the epoch, *seconds* that it took, *result* as strace says it
    (``3``, ``-1 ENOENT``, ``?`` for one that did not return)."""

    pid: int
    at: float
    name: str
    arguments: str
    result: str
    seconds: float


def parse_calls(lines: Iterable[str]) -> list[Call]:
    """The calls in the order in which they began; signals, exits and lines that are no calls are left out."""
    found: list[Call] = []
    unfinished: dict[int, int] = {}  # pid → index in found
    for line in lines:
        words = line.split(None, 2)
        if len(words) < 3 or not words[0].isdigit():
            continue
        pid, at, text = int(words[0]), _number(words[1]), words[2].rstrip("\n")
        if text.startswith("<... ") and pid in unfinished:
            index = unfinished.pop(pid)
            begun = found[index]
            rest = text.partition(" resumed>")[2]
            arguments, result, seconds = _ending(begun.arguments + rest)
            found[index] = Call(pid, begun.at, begun.name, arguments, result, seconds or at - begun.at)
            continue
        name, parenthesis, rest = text.partition("(")
        if not parenthesis or not name.replace("_", "").isalnum():
            continue
        if rest.endswith("<unfinished ...>"):
            unfinished[pid] = len(found)
            found.append(Call(pid, at, name, rest.removesuffix("<unfinished ...>").rstrip(), "?", 0.0))
            continue
        found.append(Call(pid, at, name, *_ending(rest)))
    return found


def _ending(text: str) -> tuple[str, str, float]:
    """(arguments, result, seconds) of what follows the name and its parenthesis."""
    before, equals, after = text.rpartition(" = ")
    if not equals:
        return text, "?", 0.0
    result, bracket, seconds = after.rpartition(" <")
    if not bracket or not seconds.endswith(">"):
        result, seconds = after, ""
    return before.rstrip().removesuffix(")"), result.partition(" (")[0].strip(), _number(seconds.rstrip(">"))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
