"""Values in GVariant's text format, as annotations give them: ``true``, ``uint64 5000000``, ``'text'``, ``['a', 'b']``.

Only what a property of a systemd unit can be: booleans, numbers, strings, and arrays and tuples of these.  The result is a
D-Bus (signature, value) as :mod:`gpurun.formats.dbus` takes it.

Reference: docs.gtk.org/glib/gvariant-text-format.html.
"""

from __future__ import annotations

from gpurun.formats.dbus import split_signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KEYWORDS = {
    "boolean": "b", "byte": "y", "int16": "n", "uint16": "q", "int32": "i", "uint32": "u", "int64": "x", "uint64": "t",
    "double": "d", "string": "s", "objectpath": "o", "signature": "g",
}  # fmt: skip
_RANGES = {"y": (0, 8), "q": (0, 16), "u": (0, 32), "t": (0, 64), "n": (-1, 16), "i": (-1, 32), "x": (-1, 64)}
_MAX_SIGNATURE = 64  # of the 255 that D-Bus has: none that systemd knows comes near
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def parse_variant(text: str) -> tuple[str, Any]:
    """(signature, value) of *text*; raises ValueError that says what is wrong."""
    try:
        kind, value, rest = _parse(text.strip(), "")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if len(kind) > _MAX_SIGNATURE:
        raise ValueError(f"a type has at most {_MAX_SIGNATURE} letters")
    if rest.strip():
        raise ValueError(f"{rest.strip()!r} is left over")
    return kind, value


def _parse(text: str, wanted: str) -> tuple[str, Any, str]:
    """(signature, value, what follows); *wanted* is the type if something before has said it, else empty."""
    text = text.lstrip()
    if text.startswith("@"):
        kind, _, text = text[1:].partition(" ")
        if len(split_signature(kind)) != 1:
            raise ValueError(f'"@{kind}" names no single type')
        return _parse(text, kind)
    if text[:1] in ("'", '"'):
        value, rest = _string(text)
        return _check(wanted or "s", value, "sog"), value, rest
    if text[:1] == "[":
        return _array(text[1:], wanted)
    if text[:1] == "(":
        return _tuple(text[1:], wanted)
    size = next((i for i, c in enumerate(text) if c in " \t\n,]()[@'\""), len(text))
    word, rest = text[:size], text[size:]
    if word in ("true", "false"):
        return _check(wanted or "b", word, "b"), word == "true", rest
    if word in _KEYWORDS:
        return _parse(rest, _KEYWORDS[word])
    return _number(word, wanted, rest)


def _check(kind: str, value: str, allowed: str) -> str:
    if kind not in tuple(allowed):
        raise ValueError(f'{value!r} is not of type "{kind}"')
    return kind


def _number(word: str, wanted: str, rest: str) -> tuple[str, Any, str]:
    if wanted == "d" or (not wanted and "." in word and not word.startswith("0x")):
        return "d", float(word), rest
    kind = _check(wanted or "i", word, "".join(_RANGES))
    octal = len(word.lstrip("+-")) > 1 and word.lstrip("+-").isdigit() and word.lstrip("+-")[0] == "0"
    value = int(word, 8 if octal else 0)
    sign, bits = _RANGES[kind]
    least, most = (0, (1 << bits) - 1) if sign == 0 else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if not least <= value <= most:
        raise ValueError(f"{word} does not fit into its type (from {least} to {most})")
    return kind, value, rest


def _string(text: str) -> tuple[str, str]:
    quote, out, at = text[0], "", 1
    while at < len(text):
        letter = text[at]
        if letter == quote:
            return out, text[at + 1 :]
        if letter == "\\":
            at += 1
            letter = text[at : at + 1]
            if letter in ("u", "U"):
                size = 4 if letter == "u" else 8
                out += _character(int(text[at + 1 : at + 1 + size], 16))
                at += size + 1
                continue
            letter = _ESCAPES.get(letter, letter)
        out += letter
        at += 1
    raise ValueError(f"a text that begins with {quote} does not end")


def _character(code: int) -> str:
    if code == 0 or 0xD800 <= code < 0xE000:
        raise ValueError(f"{code:x} is not a character that a string can hold")
    return chr(code)


def _array(text: str, wanted: str) -> tuple[str, Any, str]:
    if wanted and wanted[0] != "a":
        raise ValueError(f'an array is not of type "{wanted}"')
    element = wanted[1:]
    items: list[Any] = []
    while True:
        text = text.lstrip()
        if text.startswith("]"):
            break
        if items:
            text = _comma(text)
        element, value, text = _parse(text, element)
        items.append(value)
    if not element:
        raise ValueError("an empty array needs its type, like @as []")
    return f"a{element}", bytes(items) if element == "y" else tuple(items), text[1:]


def _tuple(text: str, wanted: str) -> tuple[str, Any, str]:
    if wanted and wanted[0] != "(":
        raise ValueError(f'a tuple is not of type "{wanted}"')
    kinds = list(split_signature(wanted[1:-1]))
    signature = ""
    items: list[Any] = []
    while True:
        text = text.lstrip()
        if text.startswith(")"):
            break
        if items:
            text = _comma(text).lstrip()
            if text.startswith(")"):
                break  # (1,) is a tuple of one
        kind, value, text = _parse(text, kinds.pop(0) if kinds else "")
        signature += kind
        items.append(value)
    if wanted and f"({signature})" != wanted:
        raise ValueError(f'a tuple of "({signature})" is not of type "{wanted}"')
    return f"({signature})", tuple(items), text[1:]


def _comma(text: str) -> str:
    if not text.startswith(","):
        raise ValueError(f'"," is missing before {text[:20]!r}')
    return text[1:]
