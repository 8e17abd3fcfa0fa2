"""The wire format of D-Bus: messages to bytes and back; pure.

Values are Python's own: ``s o g`` str, ``b`` bool, the integers int, ``d`` float, arrays and structures tuples (``ay``
bytes), ``v`` a pair (signature, value).

Specification: dbus.freedesktop.org/doc/dbus-specification.html, "Type System", "Message Protocol".
"""

from __future__ import annotations

from _struct import error as struct_error  # type: ignore[attr-defined]
from _struct import pack, unpack_from

from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

METHOD_CALL, METHOD_RETURN, ERROR, SIGNAL = 1, 2, 3, 4
# Header fields: code → signature.
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _REPLY_SERIAL, _DESTINATION, _SENDER, _SIGNATURE = 1, 2, 3, 4, 5, 6, 7, 8
#: type → (struct's letter, size, which is the alignment too)
_FIXED = {
    "y": ("B", 1),
    "n": ("h", 2),
    "q": ("H", 2),
    "i": ("i", 4),
    "u": ("I", 4),
    "b": ("I", 4),
    "x": ("q", 8),
    "t": ("Q", 8),
    "d": ("d", 8),
}
_MAX_MESSAGE = 1 << 27  # the specification's limit


class Message(Record):
    """A message that has arrived: *reply_to* is the serial of the call that it answers, else 0."""

    kind: int
    interface: str
    member: str
    error: str
    reply_to: int
    body: tuple[Any, ...]


_MAX_DEPTH, _MAX_SIGNATURE = 64, 255  # the specification's own limits


def split_signature(signature: str) -> tuple[str, ...]:
    """The single complete types of *signature*: ``sa{sv}u`` is ``s``, ``a{sv}``, ``u``."""
    types = []
    at = 0
    while at < len(signature):
        end = _type_end(signature, at)
        types.append(signature[at:end])
        at = end
    return tuple(types)


def _type_end(signature: str, at: int) -> int:
    """The end of the complete type that begins at *at*; raises ValueError when there is none."""
    if at >= len(signature):
        raise ValueError(f'"{signature}" is not a D-Bus signature')
    letter = signature[at]
    if letter == "a":
        return _type_end(signature, at + 1)
    if letter in "({":
        close = ")" if letter == "(" else "}"
        at = _type_end(signature, at + 1)  # there is no empty structure
        while signature[at : at + 1] != close:
            at = _type_end(signature, at)
        return at + 1
    if letter not in _FIXED and letter not in "sogv":
        raise ValueError(f'"{signature}" is not a D-Bus signature')
    return at + 1


def _alignment(kind: str) -> int:
    if kind in _FIXED:
        return _FIXED[kind][1]
    return 8 if kind[0] in "({" else 4 if kind[0] in "aso" else 1


def marshal(signature: str, values: tuple[Any, ...], out: bytearray | None = None) -> bytearray:
    """*values* in little-endian wire format, appended to *out*, to whose beginning alignment is relative."""
    out = bytearray() if out is None else out
    for kind, value in zip(split_signature(signature), values, strict=True):
        _put(out, kind, value)
    return out


def _pad(out: bytearray, alignment: int) -> None:
    out.extend(b"\0" * (-len(out) % alignment))


def _put(out: bytearray, kind: str, value: Any) -> None:
    _pad(out, _alignment(kind))
    if kind in _FIXED:
        out += pack("<" + _FIXED[kind][0], value)
    elif kind in ("s", "o"):
        data = value.encode("utf-8", "surrogateescape")
        out += pack("<I", len(data)) + data + b"\0"
    elif kind == "g":
        out += pack("B", len(value)) + value.encode() + b"\0"
    elif kind == "v":
        _put(out, "g", value[0])
        _put(out, value[0], value[1])
    elif kind[0] == "a":
        at = len(out)
        out += b"\0\0\0\0"
        _pad(out, _alignment(kind[1:]))
        begin = len(out)
        if kind == "ay":
            out += bytes(value)
        else:
            for item in value:
                _put(out, kind[1:], item)
        out[at : at + 4] = pack("<I", len(out) - begin)
    else:
        marshal(kind[1:-1], value, out)


def unmarshal(signature: str, data: bytes, at: int = 0, order: str = "<", depth: int = 0) -> tuple[tuple[Any, ...], int]:
    """(the values of *signature* in *data* from *at* on, where they end); raises ValueError for what is cut off, or nested
    more deeply than D-Bus allows (*depth* is how deep it is already)."""
    values = []
    if depth > _MAX_DEPTH or len(signature) > _MAX_SIGNATURE:
        raise ValueError("a D-Bus message is damaged: it is nested too deeply")
    try:
        for kind in split_signature(signature):
            value, at = _take(kind, data, at, order, depth)
            values.append(value)
    except (struct_error, IndexError) as e:
        raise ValueError(f"a D-Bus message is damaged: {e}") from None
    return tuple(values), at


def _take(kind: str, data: bytes, at: int, order: str, depth: int) -> tuple[Any, int]:
    at += -at % _alignment(kind)
    if kind in _FIXED:
        letter, size = _FIXED[kind]
        value = unpack_from(order + letter, data, at)[0]
        return (bool(value) if kind == "b" else value), at + size
    if kind in ("s", "o", "g"):
        size = data[at] if kind == "g" else unpack_from(order + "I", data, at)[0]
        at += 1 if kind == "g" else 4
        if at + size >= len(data):
            raise ValueError("a D-Bus message is damaged: a text is cut off")
        return data[at : at + size].decode("utf-8", "surrogateescape"), at + size + 1
    if kind == "v":
        inner, at = _take("g", data, at, order, depth)
        if split_signature(inner) != (inner,):
            raise ValueError("a D-Bus message is damaged: a variant is not of one type")
        (value,), at = unmarshal(inner, data, at, order, depth + 1)
        return (inner, value), at
    if kind[0] == "a":
        size = unpack_from(order + "I", data, at)[0]
        at += 4
        at += -at % _alignment(kind[1:])
        end = at + size
        if end > len(data):
            raise ValueError("a D-Bus message is damaged: an array is cut off")
        if kind == "ay":
            return data[at:end], end
        items = []
        while at < end:
            (item,), at = unmarshal(kind[1:], data, at, order, depth + 1)
            items.append(item)
        return tuple(items), at
    return unmarshal(kind[1:-1], data, at, order, depth + 1)


def method_call(
    serial: int, destination: str, path: str, interface: str, member: str, signature: str, body: tuple[Any, ...]
) -> bytes:
    """The bytes of a method call."""
    content = bytes(marshal(signature, body))
    fields: list[tuple[int, tuple[str, str]]] = [
        (_PATH, ("o", path)),
        (_INTERFACE, ("s", interface)),
        (_MEMBER, ("s", member)),
        (_DESTINATION, ("s", destination)),
    ]
    if signature:
        fields.append((_SIGNATURE, ("g", signature)))
    head = marshal("yyyyuua(yv)", (ord("l"), METHOD_CALL, 0, 1, len(content), serial, tuple(fields)))
    _pad(head, 8)
    return bytes(head) + content


def take_message(data: bytes) -> tuple[Message, int] | None:
    """(the first message in *data*, its size), None when it is incomplete; ValueError when it is not a message.

    Raises ValueError for damaged data.
    """
    if len(data) < 16:
        return None
    order = {ord("l"): "<", ord("B"): ">"}.get(data[0])
    if order is None:
        raise ValueError("the data from D-Bus is not a message")
    body_size, _, fields_size = unpack_from(order + "III", data, 4)
    body_at = (16 + fields_size + 7) & ~7
    size = body_at + body_size
    if size > _MAX_MESSAGE:
        raise ValueError("the data from D-Bus is not a message")
    if len(data) < size:
        return None
    (fields,), _ = unmarshal("a(yv)", data[:body_at], 12, order)
    values = {code: value for code, (_, value) in fields}
    if not all(type(values.get(code, "")) is str for code in (_INTERFACE, _MEMBER, _ERROR_NAME, _SIGNATURE)):
        raise ValueError("a D-Bus message is damaged: a name is invalid")
    if type(values.get(_REPLY_SERIAL, 0)) is not int:
        raise ValueError("a D-Bus message is damaged: it does not answer a call")
    body, _ = unmarshal(values.get(_SIGNATURE, ""), data[body_at:size], 0, order)
    message = Message(
        kind=data[1],
        interface=values.get(_INTERFACE, ""),
        member=values.get(_MEMBER, ""),
        error=values.get(_ERROR_NAME, ""),
        reply_to=values.get(_REPLY_SERIAL, 0),
        body=body,
    )
    return message, size
