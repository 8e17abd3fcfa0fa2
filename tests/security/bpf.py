"""An interpreter for the classic BPF that seccomp filters are made of: an independent reading of the instruction set.

Reference: kernel Documentation/networking/filter.rst, Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import struct

X86_64, X86, AARCH64, ARM = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
X32_BIT = 0x40000000

ALLOW, LOG, TRACE, NOTIFY, TRAP = 0x7FFF0000, 0x7FFC0000, 0x7FF00000, 0x7FC00000, 0x00030000
KILL_PROCESS, KILL_THREAD = 0x80000000, 0


def errno(number: int) -> int:
    return 0x00050000 | number


def judge(program: bytes, number: int, *args: int, arch: int = X86_64) -> int:
    """What *program* says to the call *number* with *args*."""
    padded = [*args, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *[a & (1 << 64) - 1 for a in padded])
    return execute(program, data)


def execute(program: bytes, data: bytes) -> int:
    """The value returned for *data*, a struct seccomp_data; fails on what the kernel's check would refuse."""
    assert len(program) % 8 == 0
    code = list(struct.iter_unpack("<HBBI", program))
    assert 0 < len(code) <= 4096
    accumulator, at = 0, 0
    while True:
        assert at < len(code), "the program runs off its end"
        opcode, if_true, if_false, k = code[at]
        at += 1
        if opcode == 0x20:
            assert k % 4 == 0 and k + 4 <= len(data)
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif opcode == 0x54:
            accumulator &= k
        elif opcode == 0x05:
            at += k
        elif opcode & 0xFF8F == 0x05:
            taken = {0x15: accumulator == k, 0x25: accumulator > k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[
                opcode
            ]
            at += if_true if taken else if_false
        elif opcode == 0x06:
            return int(k)
        else:
            raise AssertionError(f"opcode {opcode:#x}")
