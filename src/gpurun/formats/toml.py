"""TOML, as much of it as configuration files of container tools are written in.

``tomllib`` costs 10 ms to import (re), on a path where every container would pay for it.  Those files are tables of plain
values: that much of TOML is read here, and anything else is an error that names its line.
"""

from __future__ import annotations

from gpurun.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "b": "\b", "f": "\f", "e": "\x1b"}


_MAX_DIGITS = 40  # TOML's integers have 64 bits


def parse(text: str, source: str) -> dict[str, Any]:
    """``table.key`` → value, for TOML of tables with strings, booleans, integers and arrays of those.

    Raises :class:`ConfigError` naming the line that is something else.
    """
    values: dict[str, Any] = {}
    table = ""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if stripped.startswith("["):
            name, end, rest = stripped[1:].partition("]")
            if not end or not _plain_key(name) or (rest.strip() and not rest.strip().startswith("#")):
                raise _bad(source, number)
            table = _key(name) + "."
            continue
        name, equals, rest = stripped.partition("=")
        if not equals or not _plain_key(name):
            raise _bad(source, number)
        first = number
        while _open_array(rest):
            try:
                rest += "\n" + next(lines)[1]
            except StopIteration:
                raise _bad(source, first) from None
        value, after = _value(rest.strip(), source, first)
        after = after.strip()
        if after and not after.startswith("#"):
            raise _bad(source, first)
        if table + _key(name) in values:
            raise ConfigError(f"{source}: line {first}", f"{table}{_key(name)} is given twice")
        values[table + _key(name)] = value
    return values


def _bad(source: str, line: int) -> ConfigError:
    return ConfigError(f"{source}: line {line}", "is not a table or a key with a string, boolean, integer or array of those")


def _key(name: str) -> str:
    return ".".join([part.strip().strip("\"'") for part in name.split(".")])


def _plain_key(name: str) -> bool:
    parts = _key(name).split(".")
    return all(part and part.replace("-", "").replace("_", "").isalnum() for part in parts)


def _open_array(text: str) -> bool:
    """Whether *text* begins an array that does not end in it (brackets in strings and comments do not count)."""
    if not text.strip().startswith("["):
        return False
    quote = ""
    depth = 0
    i = 0
    while i < len(text):
        c = text[i]
        if quote:
            if c == "\\" and quote == '"':
                i += 1
            elif c == quote:
                quote = ""
        elif c in "\"'":
            quote = c
        elif c == "#":
            i = text.find("\n", i)
            if i < 0:
                break
        else:
            depth += (c == "[") - (c == "]")
        i += 1
    return depth > 0


def _value(text: str, source: str, line: int) -> tuple[Any, str]:
    """The value at the start of *text* and what follows it."""
    if text.startswith(('"""', "'''")):
        raise _bad(source, line)
    if text[:1] == "'":
        inner, end, rest = text[1:].partition("'")
        if not end:
            raise _bad(source, line)
        return inner, rest
    if text[:1] == '"':
        return _basic_string(text[1:], source, line)
    if text[:1] == "[":
        return _array(text[1:], source, line)
    end_at = next((i for i, c in enumerate(text) if c in ",]# \t\n"), len(text))
    word, rest = text[:end_at], text[end_at:]
    if word in ("true", "false"):
        return word == "true", rest
    digits = word[1:] if word[:1] in ("+", "-") else word
    if len(digits) <= _MAX_DIGITS and all(part.isascii() and part.isdigit() for part in digits.split("_")):
        return int(word), rest
    raise _bad(source, line)


def _basic_string(text: str, source: str, line: int) -> tuple[str, str]:
    made: list[str] = []
    i = 0
    while i < len(text):
        c = text[i]
        if c == '"':
            return "".join(made), text[i + 1 :]
        if c == "\\":
            i += 1
            if text[i : i + 1] not in _ESCAPES:
                raise _bad(source, line)
            c = _ESCAPES[text[i]]
        made.append(c)
        i += 1
    raise _bad(source, line)


def _array(text: str, source: str, line: int) -> tuple[list[Any], str]:
    made: list[Any] = []
    while True:
        text = _skip(text)
        if text.startswith("]"):
            return made, text[1:]
        value, text = _value(text, source, line)
        made.append(value)
        text = _skip(text)
        if text.startswith(","):
            text = text[1:]
        elif not text.startswith("]"):
            raise _bad(source, line)


def _skip(text: str) -> str:
    """*text* without blanks and comments at its start."""
    text = text.lstrip()
    while text.startswith("#"):
        text = text.partition("\n")[2].lstrip()
    return text
