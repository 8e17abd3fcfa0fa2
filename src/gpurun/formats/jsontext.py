"""JSON text without the ``json`` package: what state, hooks and the log write."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quote(text: str) -> str:
    """*text* as a JSON string (RFC 8259).  Letters of all languages stay as they are; what a terminal would obey or not show
    (control and format characters, such as U+202E) is escaped; lone surrogates (bytes that are no UTF-8) become the
    replacement character, because no reader of JSON could take them."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    out = []
    for c in text:
        if c in _SHORT:
            out.append(_SHORT[c])
        elif "\ud800" <= c <= "\udfff":
            out.append("\ufffd")
        else:
            out.append(c if c.isprintable() else _escape(ord(c)))
    return f'"{"".join(out)}"'


def _escape(number: int) -> str:
    if number < 0x10000:
        return f"\\u{number:04x}"
    high, low = divmod(number - 0x10000, 0x400)  # the two halves of UTF-16 (RFC 8259, section 7)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def visible(document: str) -> str:
    """*document*, compact JSON, with all escaped that :func:`quote` escapes: for what others have written."""
    if document.isprintable():
        return document
    return "".join([c if c.isprintable() or "\ud800" <= c <= "\udfff" else _escape(ord(c)) for c in document])


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
