"""Protocol Buffers on the wire, as far as CRIU's messages need them: whole numbers, strings and messages; pure.

CRIU speaks nothing else, and the library for it costs more to import than all of gpurun.
Reference: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from gpurun.errors import GpurunError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class BadMessage(GpurunError):
    """What came is no message."""

    def __init__(self) -> None:
        super().__init__("criu sent a message that cannot be read")


def message(fields: Iterable[tuple[int, int | str | bytes]]) -> bytes:
    """The fields (number, value) as they are sent; a value is a whole number (booleans too), a text, or a message."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += _varint(number << 3 | _VARINT)
            out += _varint(value & 0xFFFFFFFFFFFFFFFF)  # a negative one in two's complement, 64 bits wide
        else:
            data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
            out += _varint(number << 3 | _BYTES)
            out += _varint(len(data))
            out += data
    return bytes(out)


def fields(data: bytes) -> dict[int, list[int | bytes]]:
    """The values of each field by its number, in their order; raises :class:`BadMessage`."""
    found: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        value: int | bytes
        kind = key & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
        else:
            if kind == _BYTES:
                size, at = _read_varint(data, at)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise BadMessage
            value, at = data[at : at + size], at + size
            if at > len(data):
                raise BadMessage
        found.setdefault(key >> 3, []).append(value)
    return found


def number(found: dict[int, list[int | bytes]], field: int, default: int = 0) -> int:
    """The last value of a field of whole numbers (of a field given twice the last one counts), as a signed one.

    Raises :class:`BadMessage` for a field of another type.
    """
    value = found.get(field, [default])[-1]
    if not isinstance(value, int):
        raise BadMessage
    return value - (1 << 64) if value >> 63 == 1 else value


def text(found: dict[int, list[int | bytes]], field: int) -> str:
    """The last value of a field of text, "" if it is not there."""
    return inner(found, field).decode("utf-8", "replace")


def inner(found: dict[int, list[int | bytes]], field: int) -> bytes:
    """The last value of a field of messages, as bytes; no bytes if it is not there.

    Raises :class:`BadMessage` for a field of another type.
    """
    value = found.get(field, [b""])[-1]
    if not isinstance(value, bytes):
        raise BadMessage
    return value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise BadMessage
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise BadMessage
            return value, at
        shift += 7
