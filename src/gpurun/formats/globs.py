"""Patterns for names, as in a shell: ``*``, ``?``, ``[a-z]``, ``[^a-z]``, and a backslash before a character that is meant.

``fnmatch`` of the standard library imports the regular expressions, which cost more than a whole container.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: More paths than that are no list of a driver's files.
LIMIT = 4096
#: One character, whichever.
_ANY: tuple[bool, tuple[tuple[str, str], ...]] = (False, ())


def is_pattern(path: str) -> bool:
    """Whether *path* has a character that makes it a pattern."""
    return any(c in path for c in "*?[\\")


def matches(name: str, pattern: str) -> bool:
    """Whether the whole of *name* is what *pattern* says; one that is not well formed matches nothing."""
    tokens = _tokens(pattern)
    if tokens is None:
        return False
    # The places in *name* up to which the tokens so far can have matched: linear for each token, whatever the pattern.
    places = {0}
    for token in tokens:
        if token is None:
            places = set(range(min(places), len(name) + 1))
        else:
            places = {p + 1 for p in places if p < len(name) and _is_in(name[p], token)}
        if not places:
            return False
    return len(name) in places


def matches_path(path: str, pattern: str) -> bool:
    """Whether the whole of *path* is what *pattern* says: ``*`` and ``?`` stand for no slash (:func:`matches` knows none).

    A pattern that begins with ``**/`` applies only to the last name.
    """
    if pattern.startswith("**/"):
        path, pattern = path.rpartition("/")[2], pattern[3:]
    tokens = _tokens(pattern)
    if tokens is None:
        return False
    places = {0}
    for token in tokens:
        if token is None:
            ends = [(p, path.find("/", p)) for p in places]
            places = {n for p, end in ends for n in range(p, (len(path) if end < 0 else end) + 1)}
        else:
            no_slash = token == _ANY
            places = {
                p + 1 for p in places if p < len(path) and _is_in(path[p], token) and not (no_slash and path[p] == "/")
            }
        if not places:
            return False
    return len(path) in places


def expand(pattern: str, names_in: Callable[[str], list[str]]) -> list[str]:
    """The paths that the absolute *pattern* stands for, sorted; *names_in* lists a directory (none when it is not there)."""
    found = [""]
    words = pattern.strip("/").split("/")
    for i, word in enumerate(words):
        if not is_pattern(word):
            found = [f"{path}/{word}" for path in found]
            continue
        hidden = word.startswith(".")
        listed = [(path, name) for path in found for name in names_in(path or "/")]
        found = [f"{p}/{n}" for p, n in listed if (hidden or not n.startswith(".")) and matches(n, word)][:LIMIT]
        if not found or i == len(words) - 1:
            break
    return sorted(found)


def _tokens(pattern: str) -> list[tuple[bool, tuple[tuple[str, str], ...]] | None] | None:
    """None for ``*``, else (whether the character is one of these ranges, the ranges); None for all: not well formed."""
    tokens: list[tuple[bool, tuple[tuple[str, str], ...]] | None] = []
    rest = pattern
    while rest:
        c, rest = rest[0], rest[1:]
        if c == "*":
            tokens.append(None)
        elif c == "?":
            tokens.append(_ANY)
        elif c == "[":
            read = _ranges(rest)
            if read is None:
                return None
            token, rest = read
            tokens.append(token)
        else:
            if c == "\\":
                if not rest:
                    return None
                c, rest = rest[0], rest[1:]
            tokens.append((True, ((c, c),)))
    return tokens


def _ranges(text: str) -> tuple[tuple[bool, tuple[tuple[str, str], ...]], str] | None:
    """The ranges of a bracket expression whose opening bracket was read, and what follows it."""
    wanted = text[:1] not in ("^", "!")
    rest = text if wanted else text[1:]
    ranges: list[tuple[str, str]] = []
    while rest and (rest[0] != "]" or not ranges):
        low, rest = _one(rest)
        high = low
        if rest[:1] == "-" and rest[1:2] not in ("", "]"):
            high, rest = _one(rest[1:])
        ranges.append((low, high))
    return ((wanted, tuple(ranges)), rest[1:]) if rest and ranges else None


def _one(text: str) -> tuple[str, str]:
    return (text[1], text[2:]) if text[0] == "\\" and len(text) > 1 else (text[0], text[1:])


def _is_in(character: str, token: tuple[bool, tuple[tuple[str, str], ...]]) -> bool:
    wanted, ranges = token
    return any(low <= character <= high for low, high in ranges) is wanted
