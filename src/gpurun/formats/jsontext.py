"""JSON text without the ``json`` package: what state, hooks and the log write."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quote(text: str) -> str:
    """*text* as a JSON string (RFC 8259); what is not ASCII stays as it is, lone surrogates (bytes that are no UTF-8) become
    the replacement character, because no reader of JSON could take them."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    out = []
    for c in text:
        if c in _SHORT:
            out.append(_SHORT[c])
        elif c < " " or c == "\x7f":
            out.append(f"\\u{ord(c):04x}")
        elif "\ud800" <= c <= "\udfff":
            out.append("\ufffd")
        else:
            out.append(c)
    return f'"{"".join(out)}"'


def dumps(value: Any, indent: int = 0, _level: int = 0) -> str:
    """*value* (dict, list, tuple, str, int, float, bool, None) as JSON; *indent* spaces a level, 0 for one compact line."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, (int, float)):
        return repr(value)
    newline, colon = ("\n" + " " * indent * (_level + 1), ": ") if indent else ("", ":")
    end = "\n" + " " * indent * _level if indent else ""
    if isinstance(value, dict):
        if not value:
            return "{}"
        members = [f"{newline}{quote(str(k))}{colon}{dumps(v, indent, _level + 1)}" for k, v in value.items()]
        return "{" + ",".join(members) + end + "}"
    if not value:
        return "[]"
    return "[" + ",".join([newline + dumps(v, indent, _level + 1) for v in value]) + end + "]"
