"""A shared library written byte by byte: real enough for dlopen, for x86_64, aarch64 and i386, without a compiler.

One read-only executable segment holds headers, symbols, strings and code; a second, writable one the dynamic section
(glibc before 2.35 writes into it).  Each exported function returns a constant; ``Writes`` also stores one through its
first argument, as ``cuDriverGetVersion(int *)`` does.
"""

from __future__ import annotations

from struct import pack
from typing import NamedTuple

MACHINES = {"x86_64": 62, "aarch64": 183, "i386": 3}
_ALIGN = {"x86_64": 0x1000, "aarch64": 0x10000, "i386": 0x1000}

DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME = 0, 1, 4, 5, 6, 10, 11, 14


class Function(NamedTuple):
    """An exported ``int name(int *out)``: returns *result*; stores *writes* in ``*out`` unless that is None."""

    name: str
    result: int
    writes: int | None = None


def _code(function: Function, machine: str) -> bytes:
    if machine == "i386":
        # mov edx, [esp+4]; mov dword [edx], imm32
        store = b"" if function.writes is None else b"\x8b\x54\x24\x04\xc7\x02" + pack("<I", function.writes)
        return store + b"\xb8" + pack("<I", function.result) + b"\xc3"
    if machine == "x86_64":
        store = b"" if function.writes is None else b"\xc7\x07" + pack("<I", function.writes)  # mov dword [rdi], imm32
        return store + b"\xb8" + pack("<I", function.result) + b"\xc3"  # mov eax, imm32; ret
    words = []
    if function.writes is not None:
        words.append(0x52800000 | (function.writes & 0xFFFF) << 5 | 1)  # movz w1, #low
        words.append(0x72A00000 | (function.writes >> 16) << 5 | 1)  # movk w1, #high, lsl #16
        words.append(0xB9000001)  # str w1, [x0]
    words.append(0x52800000 | (function.result & 0xFFFF) << 5)  # movz w0, #result
    words.append(0xD65F03C0)  # ret
    return pack(f"<{len(words)}I", *words)


def shared_library(
    soname: str, functions: tuple[Function, ...] = (), machine: str = "x86_64", needed: tuple[str, ...] = ()
) -> bytes:
    """The file of a shared library with that DT_SONAME (none when empty), exporting *functions*."""
    strings = bytearray(b"\0")

    def string(text: str) -> int:
        offset = len(strings)
        strings.extend(text.encode() + b"\0")
        return offset

    names = [string(f.name) for f in functions]
    soname_at = string(soname) if soname else 0
    needed_at = [string(n) for n in needed]
    while len(strings) % 16:
        strings.append(0)

    wide = machine != "i386"
    header_size, entry_size, symbol_size, word = (64, 56, 24, "Q") if wide else (52, 32, 16, "I")
    count = len(functions) + 1
    chain = [0] * count  # one bucket: every symbol is in one chain
    for i in range(1, count):
        chain[i] = i + 1 if i + 1 < count else 0
    hash_table = pack(f"<{3 + count}I", 1, count, 1 if count > 1 else 0, *chain)
    hash_table += bytes(-len(hash_table) % 8)

    hash_at = header_size + 4 * entry_size
    symbols_at = hash_at + len(hash_table)
    strings_at = symbols_at + symbol_size * count
    text_at = strings_at + len(strings)
    code = b""
    symbols = bytes(symbol_size)
    for function, name in zip(functions, names, strict=True):
        body = _code(function, machine)
        value, size = text_at + len(code), len(body)
        # st_name, st_info (global function), st_other, st_shndx (any defined one), st_value, st_size; in 32 bits reordered
        symbols += pack("<IBBHQQ", name, 0x12, 0, 1, value, size) if wide else pack("<IIIBBH", name, value, size, 0x12, 0, 1)
        code += body + bytes(-len(body) % 16)
    dynamic_at = text_at + len(code) + (-(text_at + len(code)) % 16)
    align = _ALIGN[machine]
    tags = [(DT_NEEDED, n) for n in needed_at] + ([(DT_SONAME, soname_at)] if soname else [])
    tags += [(DT_HASH, hash_at), (DT_STRTAB, strings_at), (DT_SYMTAB, symbols_at)]
    tags += [(DT_STRSZ, len(strings)), (DT_SYMENT, symbol_size), (DT_NULL, 0)]
    dynamic = b"".join(pack(f"<2{word}", tag, value) for tag, value in tags)
    address = dynamic_at + align  # the next page: same offset within it, so that the file needs no padding

    def segment(kind: int, flags: int, offset: int, vaddr: int, size: int, alignment: int) -> bytes:
        if not wide:
            return pack("<8I", kind, offset, vaddr, vaddr, size, size, flags, alignment)
        return pack("<IIQQQQQQ", kind, flags, offset, vaddr, vaddr, size, size, alignment)

    program = (
        segment(1, 5, 0, 0, dynamic_at, align)  # PT_LOAD, r-x
        + segment(1, 6, dynamic_at, address, len(dynamic), align)  # PT_LOAD, rw-
        + segment(2, 6, dynamic_at, address, len(dynamic), 8)  # PT_DYNAMIC
        + segment(0x6474E551, 6, 0, 0, 0, 16)  # PT_GNU_STACK: without it the loader wants an executable stack
    )
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1, 1]) + bytes(9)
    sizes = (header_size, entry_size, 4, 64 if wide else 40, 0, 0)
    header = ident + pack(f"<HHI3{word}I6H", 3, MACHINES[machine], 1, 0, header_size, 0, 0, *sizes)
    body = header + program + hash_table + symbols + bytes(strings) + code
    return body + bytes(dynamic_at - len(body)) + dynamic
