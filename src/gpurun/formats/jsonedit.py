"""One member of a JSON text changed, added or taken out, and every other character left as it is."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
_USUAL = "    "


class _Member(NamedTuple):
    key: str
    start: int  # of the key
    value: int
    end: int  # behind the value


class _Object(NamedTuple):
    start: int  # of the {
    members: list[_Member]
    end: int  # of the }


def with_member(text: str, path: tuple[str, ...], value: Any) -> str:
    """*text*, whose value is an object, with *value* at *path*; objects on the way are made.  Raises ValueError."""
    unit = _unit(text)
    at = _skip(text, 0)
    for depth, key in enumerate(path):
        found = _object(text, at)
        member = next((m for m in found.members if m.key == key), None)
        if member is None:
            for name in reversed(path[depth + 1 :]):
                value = {name: value}
            return _insert(text, found, key, value, unit, depth + 1)
        at = member.value
        if depth == len(path) - 1:
            return text[: member.value] + _dumps(value, unit, unit * (depth + 1)) + text[member.end :]
    raise ValueError("an empty path names no member")


def without_member(text: str, path: tuple[str, ...]) -> str:
    """*text* without the member at *path*, and without the objects on the way that are empty then."""
    at = _skip(text, 0)
    found = _object(text, at)
    for depth, key in enumerate(path):
        index = next((i for i, m in enumerate(found.members) if m.key == key), -1)
        if index < 0:
            return text
        if depth == len(path) - 1:
            break
        found = _object(text, found.members[index].value)
    if len(found.members) == 1:
        return text[: found.start] + "{}" + text[found.end + 1 :] if len(path) == 1 else without_member(text, path[:-1])
    if index:  # with the comma before it
        return text[: found.members[index - 1].end] + text[found.members[index].end :]
    return text[: found.members[0].start] + text[found.members[1].start :]


def _object(text: str, at: int) -> _Object:
    """The object at *at*.  Raises ValueError when there is something else."""
    if text[at : at + 1] != "{":
        raise ValueError(f"character {at} begins no object")
    members: list[_Member] = []
    here = _skip(text, at + 1)
    while text[here] != "}":
        start = here
        key, here = _DECODER.raw_decode(text, start)
        value = _skip(text, _skip(text, here) + 1)  # behind the colon
        _, end = _DECODER.raw_decode(text, value)
        members.append(_Member(key, start, value, end))
        here = _skip(text, end)
        if text[here] == ",":
            here = _skip(text, here + 1)
    return _Object(at, members, here)


def _insert(text: str, found: _Object, key: str, value: Any, unit: str, depth: int) -> str:
    indent = unit * depth
    name = json.dumps(key)
    if not found.members:
        made = f"{{\n{indent}{name}: {_dumps(value, unit, indent)}\n{unit * (depth - 1)}}}"
        return text[: found.start] + made + text[found.end + 1 :]
    last = found.members[-1]
    between = text[found.start + 1 : found.members[0].start]  # as the first member is set off
    if "\n" not in between:
        return f"{text[: last.end]}, {name}: {json.dumps(value)}{text[last.end :]}"
    own = between[between.rindex("\n") + 1 :]
    return f"{text[: last.end]},\n{own}{name}: {_dumps(value, unit, own)}{text[last.end :]}"


def _dumps(value: Any, unit: str, indent: str) -> str:
    return json.dumps(value, indent=unit).replace("\n", f"\n{indent}")


def _unit(text: str) -> str:
    """What one level is indented by: as far as the first member is."""
    found = re.match(r'\s*\{[ \t]*\r?\n([ \t]+)"', text)
    return found[1] if found else _USUAL


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at
