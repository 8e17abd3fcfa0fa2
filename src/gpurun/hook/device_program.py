"""Allow devices in the cgroup of a container that another runtime is making: extend the device programs it has there.

A program cannot be edited, so each one attached to the container's cgroup is loaded again with instructions in front that
allow our devices, and replaced atomically.  (In containers that gpurun makes, the rules are part of its own program from the
start.)
"""

from __future__ import annotations

import posix
from _struct import pack
from errno import EACCES, EINVAL, ENOENT, EPERM

from gpurun.errors import GpurunError, StepError
from gpurun.linux import bpf
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import O_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import DeviceClass, DeviceNode

_BPF_DEVCG_DEV = {"b": 1, "c": 2, "u": 2}
_BPF_DEVCG_ACC = {"m": 1, "r": 2, "w": 4}
_R0, _CTX, _TYPE, _ACCESS, _MAJOR, _MINOR = 0, 1, 2, 3, 4, 5
_LDX_W, _MOV32_X, _MOV32_K, _AND32_K, _RSH32_K = 0x61, 0xBC, 0xB4, 0x54, 0x74
_JNE32_K, _JSET32_K, _EXIT = 0x56, 0x46, 0x95


def allowing_prefix(nodes: tuple[DeviceNode, ...], classes: tuple[DeviceClass, ...] = ()) -> bytes:
    """Instructions that return 1 for an access to one of *nodes* or *classes* within its permissions, else fall through.

    They use registers 2 to 5, which a program that begins after them cannot have read before writing; r1 (the context)
    stays.  Layout of the context: struct bpf_cgroup_dev_ctx (access_type is type | access << 16, major, minor).
    """
    code = [
        _insn(_LDX_W, _TYPE, _CTX, 0),
        _insn(_MOV32_X, _ACCESS, _TYPE),
        _insn(_AND32_K, _TYPE, imm=0xFFFF),
        _insn(_RSH32_K, _ACCESS, imm=16),
        _insn(_LDX_W, _MAJOR, _CTX, 4),
        _insn(_LDX_W, _MINOR, _CTX, 8),
    ]
    rules: list[tuple[str, int, int | None, str]] = [(n.type, n.major, n.minor, n.permissions) for n in nodes]
    rules += [(c.type, c.major, None, c.permissions) for c in classes]
    for kind, major, minor, permissions in rules:
        if not permissions or kind == "p":
            continue
        refused = 7 & ~sum([_BPF_DEVCG_ACC[letter] for letter in set(permissions)])
        tests = [(_JNE32_K, _TYPE, _BPF_DEVCG_DEV[kind]), (_JNE32_K, _MAJOR, major)]
        if minor is not None:
            tests.append((_JNE32_K, _MINOR, minor))
        if refused:
            tests.insert(1, (_JSET32_K, _ACCESS, refused))
        # Each test jumps over the rest of the block: the tests after it, the move and the exit.
        code += [_insn(op, reg, off=len(tests) - i + 1, imm=imm) for i, (op, reg, imm) in enumerate(tests)]
        code += [_insn(_MOV32_K, _R0, imm=1), _insn(_EXIT)]
    return b"".join(code)


def _insn(opcode: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> bytes:
    return pack("=BBhI", opcode, dst | src << 4, off, imm)


def allow_devices(cgroup: str, nodes: tuple[DeviceNode, ...], classes: tuple[DeviceClass, ...] = ()) -> str:
    """Extend all device programs attached to the directory *cgroup*; returns a warning, or "".

    A cgroup without a program restricts nothing.  Without the permission to use bpf(2) nothing is done and the warning
    says so: in a user namespace of its own no runtime could have attached a program either.  Raises :class:`StepError` when
    the kernel refuses for another reason.
    """
    try:
        cgroup_fd = posix.open(cgroup, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    except OSError as e:
        raise StepError("open the container's cgroup", cgroup, e.errno or EINVAL) from None
    with Fd(cgroup_fd):
        try:
            prefix = allowing_prefix(nodes, classes)
            for program_id in bpf.prog_query(cgroup_fd):
                _extend(cgroup_fd, program_id, prefix)
        except OSError as e:
            if e.errno in (EPERM, EACCES):
                return f"the device rules of {cgroup} stay as they are: bpf(2) is not permitted"
            raise StepError("allow the GPUs in the container's cgroup", cgroup, e.errno or EINVAL) from None
    return ""


def _extend(cgroup_fd: int, program_id: int, prefix: bytes) -> None:
    try:
        old = bpf.prog_get_fd_by_id(program_id)
    except OSError as e:
        if e.errno == ENOENT:
            return  # taken away by its owner a moment ago
        raise
    with Fd(old):
        code = bpf.prog_instructions(old)
        if code.startswith(prefix):
            return  # a hook that ran twice
        if not code:
            raise GpurunError("the kernel does not show the container's device program")
        with Fd(bpf.prog_load(prefix + code)) as new:
            bpf.prog_attach(cgroup_fd, new, old)
