"""Which devices the programs on a cgroup let its processes open, found by running the programs' instructions here.

Only these programs decide what a container can open: it can rename, remove or make nodes in its /dev, and cannot
change a program.  Programs of any runtime and of systemd are understood as far as they load from the context, compute
with registers and compare; what else there is makes a program one of which nothing is known.

Reference: kernel Documentation/bpf/standardization/instruction-set.rst, include/uapi/linux/bpf.h (bpf_cgroup_dev_ctx).
"""

from __future__ import annotations

import posix
from _struct import iter_unpack, pack, unpack_from
from errno import EACCES, EINVAL, ENODEV, ENOENT, EPERM

from gpurun.errors import StepError
from gpurun.linux import bpf
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import O_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    Numbers = tuple[int, int]

_CHAR, _READ_WRITE = 2, 6
_CONTEXT = -1  # what register 1 holds at the beginning: a pointer that only loads may use
_CLASS, _SOURCE = 0x07, 0x08
_LDX, _ALU32, _JMP, _JMP32, _ALU64 = 0x01, 0x04, 0x05, 0x06, 0x07
_LOADS = {0x61: "=I", 0x69: "=H", 0x71: "=B"}
_STEPS = 4096  # device programs have no loops, and no runtime's is longer
#: A minor number that no GPU has: a program that allows it allows the whole major.
_NOBODYS = (1 << 20) - 1


class NotUnderstood(Exception):
    """The program uses an instruction that device programs of runtimes do not have."""


def device_programs(cgroup: str) -> tuple[bytes, ...]:
    """The instructions of all device programs that count for the processes of the directory *cgroup*, those of the cgroups
    above it too; empty where nothing restricts it, where it is gone, and for a caller who may not ask (bpf(2): root).

    Raises :class:`StepError` for any other answer of the kernel.
    """
    try:
        with Fd(posix.open(cgroup, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)) as fd:
            found = []
            for program_id in bpf.prog_query(fd, effective=True):
                try:
                    with Fd(bpf.prog_get_fd_by_id(program_id)) as program:
                        found.append(bpf.prog_instructions(program))
                except OSError as e:
                    if e.errno != ENOENT:  # replaced a moment ago
                        raise
            return tuple([code for code in found if code])
    except OSError as e:
        if e.errno in (ENOENT, ENODEV, EPERM, EACCES, EINVAL):
            return ()
        raise StepError("read the device programs of", cgroup, e.errno) from None


def openable(programs: tuple[bytes, ...], numbers: Iterable[Numbers]) -> frozenset[Numbers]:
    """Those character devices *numbers* (major, minor) that each of *programs* lets be opened for reading and writing."""
    understood = [code for code in programs if _is_understood(code)]
    return frozenset([one for one in numbers if all(_verdict(code, *one) for code in understood)])


def granted_numbers(programs: tuple[bytes, ...], numbers: Iterable[Numbers]) -> frozenset[Numbers]:
    """Those of :func:`openable` that were allowed one by one, and not with all devices of their major: what was meant
    the container to have."""
    found = openable(programs, numbers)
    wide = {major for major in {major for major, _ in found} if openable(programs, [(major, _NOBODYS)])}
    return frozenset([one for one in found if one[0] not in wide])


def _is_understood(code: bytes) -> bool:
    try:
        run(code, _CHAR, _READ_WRITE, 1, 3)
    except NotUnderstood:
        return False
    return True


def _verdict(code: bytes, major: int, minor: int) -> bool:
    try:
        return run(code, _CHAR, _READ_WRITE, major, minor)
    except NotUnderstood:
        return True


def run(code: bytes, kind: int, access: int, major: int, minor: int) -> bool:
    """The verdict of the program *code* (struct bpf_insn) on *access* (BPF_DEVCG_ACC_*) to a device of *kind*
    (BPF_DEVCG_DEV_*).  Raises :class:`NotUnderstood`.
    """
    context = pack("=III", kind | access << 16, major, minor)
    instructions = list(iter_unpack("=BBhi", code))
    registers = [0] * 16
    registers[1] = _CONTEXT
    at = 0
    for _ in range(_STEPS):
        if not 0 <= at < len(instructions):
            break
        opcode, numbers, offset, immediate = instructions[at]
        target, source = numbers & 15, numbers >> 4
        at += 1
        if opcode == 0x95:
            return registers[0] & 0xFFFFFFFF != 0
        if opcode in _LOADS and registers[source] == _CONTEXT and 0 <= offset <= len(context) - 4:
            registers[target] = unpack_from(_LOADS[opcode], context, offset)[0]
            continue
        kind_of = opcode & _CLASS
        value = registers[source] if opcode & _SOURCE else immediate & 0xFFFFFFFFFFFFFFFF
        if kind_of in (_ALU32, _ALU64):
            registers[target] = _compute(opcode & 0xF0, registers[target], value, kind_of == _ALU32)
        elif opcode == 0x05 or (kind_of in (_JMP, _JMP32) and _jumps(opcode, registers[target], value)):
            at += offset
        elif kind_of not in (_JMP, _JMP32):
            break
    raise NotUnderstood


def _compute(operation: int, old: int, value: int, narrow: bool) -> int:
    """What BPF_ALU and BPF_ALU64 make of a register; a copy of the pointer to the context stays that."""
    mask = 0xFFFFFFFF if narrow else 0xFFFFFFFFFFFFFFFF
    if operation == 0xB0:
        return value if value == _CONTEXT and not narrow else value & mask
    if _CONTEXT in (old, value):
        raise NotUnderstood
    old, value = old & mask, value & mask
    shift = value & (31 if narrow else 63)
    if operation == 0x50:
        return old & value
    if operation == 0x40:
        return old | value
    if operation == 0x70:
        return old >> shift
    if operation == 0x60:
        return (old << shift) & mask
    raise NotUnderstood


def _jumps(opcode: int, left: int, right: int) -> bool:
    if _CONTEXT in (left, right):
        raise NotUnderstood
    mask = 0xFFFFFFFF if opcode & _CLASS == _JMP32 else 0xFFFFFFFFFFFFFFFF
    left, right, operation = left & mask, right & mask, opcode & 0xF0
    if operation == 0x10:
        return left == right
    if operation == 0x50:
        return left != right
    if operation == 0x40:
        return left & right != 0
    if operation == 0x20:
        return left > right
    if operation == 0x30:
        return left >= right
    if operation == 0xA0:
        return left < right
    if operation == 0xB0:
        return left <= right
    raise NotUnderstood
