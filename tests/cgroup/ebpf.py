"""An interpreter for the eBPF that device programs are made of: an independent reading of the instruction set.

Reference: kernel Documentation/bpf/standardization/instruction-set.rst.
"""

from __future__ import annotations

import struct

BLOCK, CHAR = 1, 2
MKNOD, READ, WRITE = 1, 2, 4


def access(letters: str) -> int:
    return sum({"m": MKNOD, "r": READ, "w": WRITE}[letter] for letter in letters)


def run(program: bytes, kind: str, major: int, minor: int, letters: str) -> bool:
    """The verdict of *program* on a request for *letters* of the device; fails on what a verifier would refuse."""
    context = struct.pack("<III", {"b": BLOCK, "c": CHAR}[kind] | access(letters) << 16, major, minor)
    return execute(program, context) == 1


def execute(program: bytes, context: bytes) -> int:
    assert len(program) % 8 == 0
    code = [program[at : at + 8] for at in range(0, len(program), 8)]
    registers: dict[int, int] = {1: -1}  # r1 points to the context
    at = 0
    while True:
        assert at < len(code), "the program runs off its end"
        opcode, regs, offset, immediate = struct.unpack("<BBhi", code[at])
        dst, src = regs & 15, regs >> 4
        unsigned = immediate & 0xFFFFFFFF
        at += 1
        if opcode == 0x61:  # dst = *(u32 *)(src + offset)
            assert registers[src] == -1, "a load from what is no pointer to the context"
            registers[dst] = struct.unpack_from("<I", context, offset)[0]
        elif opcode == 0xBC:
            assert registers[src] >= 0
            registers[dst] = registers[src]
        elif opcode == 0xB4:
            registers[dst] = unsigned
        elif opcode == 0x54:
            registers[dst] &= unsigned
        elif opcode == 0x74:
            registers[dst] >>= unsigned
        elif opcode == 0x16:
            at += offset if registers[dst] == unsigned else 0
        elif opcode == 0x56:
            at += offset if registers[dst] != unsigned else 0
        elif opcode == 0x5E:
            at += offset if registers[dst] != registers[src] else 0
        elif opcode == 0x95:
            return registers[0]
        else:
            raise AssertionError(f"opcode {opcode:#x}")
        assert offset >= 0, "a jump backwards"
