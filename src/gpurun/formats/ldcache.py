"""The loader's cache, ``/etc/ld.so.cache``: read it, and compose one with libraries added.  Pure: bytes in, bytes out.

Running ldconfig in a container (what the NVIDIA tools do) needs a writable image, executes a program over hostile files,
and has failed in every way it can.  The cache is a sorted table, so gpurun writes it itself: all entries of the image's
own cache as they are, ours inserted where the loader's binary search finds them, and before the image's entries of the
same name.

Format: glibc's ``sysdeps/generic/dl-cache.h`` ("glibc-ld.so.cache1.1"; the older format in front of it is skipped, and never
written: every glibc since 2.2 reads the new one).  All offsets count from the start of the new header.
"""

from __future__ import annotations

from _struct import Struct, pack, unpack_from

from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class Entry(Protocol):
        """A library that is to be in a cache: the name that programs ask for, its file, the flags word."""

        @property
        def soname(self) -> str: ...
        @property
        def path(self) -> str: ...
        @property
        def flags(self) -> int: ...


_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_MAGIC = b"ld.so-1.7.0\0"
_HEADER_SIZE = 48
_ENTRY = Struct("<iIIIQ")  # flags, key, value, osversion, hwcap
_EXTENSION_MAGIC = 0xEAA42174
_TAG_HWCAPS = 1
_LITTLE_ENDIAN = 2

#: Largest cache that is read, in bytes: a full desktop has a tenth of it.
MAX_SIZE = 8 << 20
#: Longest name of a library and longest path, in bytes: a cache may have one string of megabytes, to be read for each entry.
_NAME_MAX, _PATH_MAX = 255, 4096

# The flags word: the low byte says ELF for glibc, the second one the architecture.
FLAGS_NATIVE = {"x86_64": 0x0303, "aarch64": 0x0A03}
FLAGS_COMPAT32 = {"x86_64": 0x0003, "aarch64": 0x0903}


class CacheError(ValueError):
    """The bytes are not a cache the loader would accept."""


class Cached(Record):
    """One entry: the name a program asks for, the file, the flags word and the hwcap word as they are in the cache."""

    soname: str
    path: str
    flags: int
    hwcap: int = 0


class _Table(Record):
    """A parsed cache: *entries* as the five numbers of the file, offsets relative to the start of *strings*."""

    entries: tuple[tuple[int, int, int, int, int], ...]
    strings: bytes
    hwcaps: tuple[int, ...]  # offsets into strings of the names of glibc-hwcaps subdirectories


def parse(data: bytes) -> tuple[Cached, ...]:
    """All entries of a cache, in its order.  Raises :class:`CacheError` when it is not one."""
    table = _read(data)
    text = table.strings
    return tuple([Cached(_string(text, k), _string(text, v), flags, hwcap) for flags, k, v, _, hwcap in table.entries])


def lookup(data: bytes, flags: int, prefixes: tuple[bytes, ...]) -> tuple[tuple[str, str], ...]:
    """(name, path) of the entries of *data* with that flags word whose name begins with one of *prefixes*, in its order.

    For the big caches of hosts: nothing is decoded but what is found.
    """
    table = _read(data)
    text = table.strings
    return tuple(
        [
            (_string(text, key), _string(text, value))
            for found, key, value, _, hwcap in table.entries
            if found == flags and not hwcap and text.startswith(prefixes, key)
        ]
    )


def compose(image_cache: bytes | None, added: Sequence[Entry]) -> bytes:
    """The cache *image_cache* with *added* in it, ours first among entries of the same name.

    ``None`` (an image without a cache) gives a cache with only our entries: the loader looks in its default directories for
    the rest, exactly as it did without a cache.  Raises :class:`CacheError` when the image's file is not a cache.
    """
    table = _read(image_cache) if image_cache is not None else _Table((), b"", ())
    strings = bytearray(table.strings)
    entries = list(table.entries)
    first = added[0].path.encode("utf-8", "surrogateescape") if added else b""
    if image_cache is not None and first in image_cache and _begins_with(table, added):
        return image_cache  # composed before, by a container that shares the image
    keys: dict[int, list[int]] = {}
    for new in reversed(added):  # each is put before its equals: the first of *added* ends up first
        name = new.soname.encode("utf-8", "surrogateescape")
        key_offset = len(strings)
        strings += name + b"\0"
        value_offset = len(strings)
        strings += new.path.encode("utf-8", "surrogateescape") + b"\0"
        key = keys[key_offset] = sort_key(name)
        place = _place(entries, strings, key, keys)
        entries.insert(place, (new.flags, key_offset, value_offset, 0, 0))
    return _write(_Table(tuple(entries), bytes(strings), table.hwcaps))


def _begins_with(table: _Table, added: Sequence[Entry]) -> bool:
    """Whether of each name the first entries are those of *added*, in their order."""
    wanted: dict[str, list[tuple[str, int]]] = {}
    for entry in added:
        wanted.setdefault(entry.soname, []).append((entry.path, entry.flags))
    keys = {name.encode("utf-8", "surrogateescape"): name for name in wanted}
    there: dict[str, list[tuple[str, int]]] = {name: [] for name in wanted}
    text = table.strings
    for flags, key, value, _, _ in table.entries:
        name = keys.get(_string_within(text, key, _NAME_MAX))
        if name is not None and len(there[name]) < len(wanted[name]):
            there[name].append((_string_within(text, value, _PATH_MAX).decode("utf-8", "surrogateescape"), flags))
    return all(there[name][: len(first)] == first for name, first in wanted.items())


def sort_key(name: bytes) -> list[int]:
    """The order of names in a cache (descending), as glibc's ``_dl_cache_libcmp``: runs of digits count as one number,
    which is greater than any other character.
    """
    key: list[int] = []
    number = -1
    for byte in name:
        if 48 <= byte <= 57:
            number = byte - 48 if number < 0 else number * 10 + byte - 48
            continue
        if number >= 0:
            key.append(256 + number)
            number = -1
        key.append(byte)
    if number >= 0:
        key.append(256 + number)
    return key


def _place(
    entries: list[tuple[int, int, int, int, int]], strings: bytearray, key: list[int], keys: dict[int, list[int]]
) -> int:
    """The index of the first entry that is not greater than *key*: entries are in descending order.

    *keys* are those that have been looked at before, by the offset of their name.
    """
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        offset = entries[middle][1]
        found = keys.get(offset)
        if found is None:
            found = keys[offset] = sort_key(_string_within(strings, offset, _NAME_MAX))
        if found > key:
            low = middle + 1
        else:
            high = middle
    return low


def _string_within(strings: bytes | bytearray, offset: int, most: int) -> bytes:
    """The string at *offset*; one that is longer than *most* bytes makes it no cache that is read."""
    end = strings.find(0, offset, offset + most + 1)
    if end < 0:
        raise CacheError(f"has a name of more than {most} bytes")
    return bytes(strings[offset:end])


def _string(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(0, offset)].decode("utf-8", "surrogateescape")


def _read(data: bytes) -> _Table:
    """Parse with every bound checked: the cache of an image is whatever the image wants it to be."""
    if len(data) > MAX_SIZE:
        raise CacheError(f"is {len(data)} bytes long, more than {MAX_SIZE} are not read")
    start = 0
    if data.startswith(_OLD_MAGIC):
        if len(data) < 16:
            raise CacheError("is cut off")
        start = (16 + 12 * int(unpack_from("<I", data, 12)[0]) + 7) & ~7
    if data[start : start + len(_MAGIC)] != _MAGIC or len(data) < start + _HEADER_SIZE:
        raise CacheError("has no glibc-ld.so.cache1.1 header")
    count, string_bytes, endian, extension = unpack_from("<IIB3xI", data, start + len(_MAGIC))
    if endian & 3 not in (0, _LITTLE_ENDIAN):
        raise CacheError("is of the other byte order")
    base = _HEADER_SIZE + count * _ENTRY.size
    if start + base > len(data):
        raise CacheError("is cut off")
    strings = data[start + base : start + base + string_bytes]
    if strings and strings[-1]:
        strings += b"\0"
    size = len(strings)
    entries = []
    for flags, key, value, osversion, hwcap in _ENTRY.iter_unpack(data[start + _HEADER_SIZE : start + base]):
        if not (base <= key < base + size and base <= value < base + size):
            raise CacheError("has an entry that points outside it")
        entries.append((flags, key - base, value - base, osversion, hwcap))
    hwcaps = _read_hwcaps(data[start:], extension)
    if not all(base <= h < base + size for h in hwcaps):
        raise CacheError("has an extension that points outside it")
    return _Table(tuple(entries), strings, tuple([h - base for h in hwcaps]))


def _read_hwcaps(data: bytes, extension: int) -> tuple[int, ...]:
    """The string offsets of the glibc-hwcaps section of the extension, which entries with bit 62 of hwcap count on."""
    if not extension:
        return ()
    if extension + 8 > len(data):
        raise CacheError("is cut off")
    magic, sections = unpack_from("<II", data, extension)
    if magic != _EXTENSION_MAGIC or extension + 8 + 16 * sections > len(data):
        raise CacheError("has a bad extension")
    for i in range(sections):
        tag, _, offset, size = unpack_from("<IIII", data, extension + 8 + 16 * i)
        if tag == _TAG_HWCAPS:
            if offset + size > len(data) or size % 4:
                raise CacheError("has a bad extension")
            return tuple(unpack_from(f"<{size // 4}I", data, offset))
    return ()


def _write(table: _Table) -> bytes:
    count = len(table.entries)
    base = _HEADER_SIZE + count * _ENTRY.size
    packed = b"".join([_ENTRY.pack(f, base + k, base + v, o, h) for f, k, v, o, h in table.entries])
    strings = table.strings
    extension = 0
    tail = b""
    if table.hwcaps:
        padding = -(base + len(strings)) % 4
        extension = base + len(strings) + padding
        size = 4 * len(table.hwcaps)
        tail = bytes(padding) + pack("<IIIIII", _EXTENSION_MAGIC, 1, _TAG_HWCAPS, 0, extension + 24, size)
        tail += pack(f"<{len(table.hwcaps)}I", *[base + h for h in table.hwcaps])
    header = _MAGIC + pack("<IIB3xI12x", count, len(strings), _LITTLE_ENDIAN, extension)
    return header + packed + strings + tail
