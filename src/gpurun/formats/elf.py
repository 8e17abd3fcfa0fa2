"""The DT_SONAME of a shared library, and notes, read from the file with every bound checked.

The name under which the loader looks a library up is nowhere but in the file (``libnvidia-nvvm.so.4``,
``libGLX_nvidia.so.0``: it cannot be guessed from the file name).  Specification: elf(5).
"""

from __future__ import annotations

import posix
from _struct import error as struct_error  # type: ignore[attr-defined]
from _struct import iter_unpack, unpack_from

from gpurun.record import Record

_PT_LOAD = 1
_PT_DYNAMIC = 2
_PT_INTERP = 3
_DT_STRTAB = 5
_DT_SONAME = 14
_MAX_SONAME = 255
_MAX_INTERP = 4096
_MAX_DYNAMIC = 64 * 1024
_MAX_PROGRAM_HEADERS = 64
_SHT_NOTE = 7
_MAX_SECTIONS = 512
_MAX_NOTE = 64 * 1024  # of names of sections as well

# e_machine
EM_386 = 3
EM_ARM = 40
EM_X86_64 = 62
EM_AARCH64 = 183

#: e_machine of a machine's own programs and of its 32-bit ones, by the name that uname(2) gives it.
MACHINES = {"x86_64": (EM_X86_64, EM_386), "aarch64": (EM_AARCH64, EM_ARM)}


class Elf(Record):
    """What the header of a shared object says: *machine* (e_machine) and DT_SONAME, empty when there is none."""

    machine: int
    soname: str


def read_elf(fd: int) -> Elf | None:
    """Machine and SONAME of the little-endian ELF file *fd* (read by pread(2)); ``None`` when it is no such file."""
    try:
        return _read(fd)
    except struct_error:
        return None  # a structure reaches beyond the end of the file


def interpreter(fd: int) -> str:
    """What the kernel starts the program *fd* with: PT_INTERP of a 64-bit ELF file, the program after ``#!``; else empty."""
    head = posix.pread(fd, 256, 0)
    if head.startswith(b"#!"):
        return head[2:].partition(b"\n")[0].split()[0].decode("utf-8", "surrogateescape") if head[2:].strip() else ""
    try:
        if head[:6] != b"\x7fELF\x02\x01":
            return ""
        (at,) = unpack_from("<Q", head, 32)
        size, count = unpack_from("<HH", head, 54)
        if size != 56 or count > _MAX_PROGRAM_HEADERS or at >= 1 << 62:
            return ""
        table = posix.pread(fd, size * count, at)
        for i in range(count):
            kind, _, offset, _, _, length = unpack_from("<IIQQQQ", table, i * size)
            if kind == _PT_INTERP and offset < 1 << 62:
                return (
                    posix.pread(fd, min(length, _MAX_INTERP), offset).partition(b"\0")[0].decode("utf-8", "surrogateescape")
                )
    except struct_error:
        pass  # as in read_elf
    return ""


def read_note(fd: int, section: str, owner: bytes) -> bytes | None:
    """The content of the note of *owner* in that section of a little-endian 64-bit ELF file; ``None`` without one.

    A note that gives itself more bytes than its section has left ends with the section: the libcuda of Orins has such a
    note (41 bytes of which 39 are there, all of them zeros at the end), and NVIDIA's own reader takes what is there.
    """
    try:
        return _note(fd, section.encode() + b"\0", owner + b"\0")
    except struct_error:
        return None  # as in read_elf


def _note(fd: int, section: bytes, owner: bytes) -> bytes | None:
    head = posix.pread(fd, 64, 0)
    if head[:6] != b"\x7fELF\x02\x01":
        return None
    (shoff,) = unpack_from("<Q", head, 40)
    size, count, names_index = unpack_from("<HHH", head, 58)
    if size != 64 or not 0 < count <= _MAX_SECTIONS or names_index >= count or shoff >= 1 << 62:
        return None
    table = posix.pread(fd, size * count, shoff)
    names_at, names_size = unpack_from("<QQ", table, names_index * size + 24)
    names = posix.pread(fd, min(names_size, _MAX_NOTE), names_at) if names_at < 1 << 62 else b""
    for i in range(count):
        name, kind = unpack_from("<II", table, i * size)
        if kind != _SHT_NOTE or not names.startswith(section, name):
            continue
        at, length = unpack_from("<QQ", table, i * size + 24)
        data = posix.pread(fd, min(length, _MAX_NOTE), at) if at < 1 << 62 else b""
        owner_size, content_size, _ = unpack_from("<III", data)
        content_at = 12 + (owner_size + 3 & ~3)
        if data[12 : 12 + owner_size] == owner:
            return data[content_at : content_at + content_size]
    return None


def _read(fd: int) -> Elf | None:
    head = posix.pread(fd, 4096, 0)
    if head[:4] != b"\x7fELF" or head[5:6] != b"\x01" or head[4] not in (1, 2):
        return None
    wide = head[4] == 2
    (machine,) = unpack_from("<H", head, 18)
    if wide:
        (phoff,) = unpack_from("<Q", head, 32)
        phentsize, phnum = unpack_from("<HH", head, 54)
    else:
        (phoff,) = unpack_from("<I", head, 28)
        phentsize, phnum = unpack_from("<HH", head, 42)
    if phnum > _MAX_PROGRAM_HEADERS or phentsize != (56 if wide else 32):
        return None
    table = head[phoff : phoff + phnum * phentsize]
    if len(table) < phnum * phentsize:
        table = posix.pread(fd, phnum * phentsize, phoff) if phoff < 1 << 62 else b""
    loads: list[tuple[int, int, int]] = []  # virtual address, size in the file, offset in the file
    dynamic: tuple[int, int] | None = None
    for i in range(phnum):
        if wide:
            kind, _, offset, vaddr, _, filesz = unpack_from("<IIQQQQ", table, i * phentsize)
        else:
            kind, offset, vaddr, _, filesz = unpack_from("<IIIII", table, i * phentsize)
        if kind == _PT_LOAD:
            loads.append((vaddr, filesz, offset))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, filesz)
    if dynamic is None or dynamic[0] >= 1 << 62:
        return Elf(machine, "")
    return Elf(machine, _soname(fd, wide, dynamic, loads))


def _soname(fd: int, wide: bool, dynamic: tuple[int, int], loads: list[tuple[int, int, int]]) -> str:
    """The string at DT_STRTAB + DT_SONAME; DT_STRTAB is an address, which the PT_LOAD segments turn into an offset."""
    size = 16 if wide else 8
    length = min(dynamic[1], _MAX_DYNAMIC)
    data = posix.pread(fd, length - length % size, dynamic[0])
    values = {}
    for tag, value in iter_unpack("<qQ" if wide else "<iI", data[: len(data) - len(data) % size]):
        if tag == 0:
            break
        values[tag] = value
    if _DT_SONAME not in values or _DT_STRTAB not in values:
        return ""
    address = values[_DT_STRTAB] + values[_DT_SONAME]
    for vaddr, filesz, offset in loads:
        if vaddr <= address < vaddr + filesz and offset + address - vaddr < 1 << 62:
            name, end, _ = posix.pread(fd, _MAX_SONAME + 1, offset + address - vaddr).partition(b"\0")
            return name.decode("utf-8", "surrogateescape") if end and b"/" not in name else ""
    return ""
