"""GPUs that come and go, in the device program of a running container: instructions before the program that was there.

A program cannot be edited, so it is loaded again behind them and replaced atomically.  What stood before it until now is
known by its bytes, and taken away first.
"""

from __future__ import annotations

import posix
from _struct import pack
from errno import ENOENT

from gpurun.errors import GpurunError, StepError
from gpurun.hook.device_program import allowing_prefix
from gpurun.linux import bpf
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.fs import O_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import DeviceNode

_R0, _TYPE, _ACCESS, _MAJOR, _MINOR = 0, 2, 3, 4, 5
_MOV32_K, _JNE32_K, _JSET32_K, _JA, _EXIT = 0xB4, 0x56, 0x46, 0x05, 0x95
_READ_WRITE = 6
_TYPES = {"b": 1, "c": 2, "u": 2}
#: A program that allows all, for a container that had none.
ALLOW_ALL = pack("=BBhI", _MOV32_K, _R0, 0, 1) + pack("=BBhI", _EXIT, 0, 0, 0)


def verdicts(allowed: tuple[DeviceNode, ...], denied: tuple[DeviceNode, ...]) -> bytes:
    """Instructions that allow *allowed*, and reading and writing of *denied* not; empty when there is nothing to say."""
    if not allowed and not denied:
        return b""
    code = [allowing_prefix(allowed)]
    for node in denied:
        tests = [(_JNE32_K, _TYPE, _TYPES[node.type]), (_JNE32_K, _MAJOR, node.major), (_JNE32_K, _MINOR, node.minor)]
        block = 5 - len(tests) + 2  # what follows the tests: the look at the access, a jump, the verdict and the exit
        for i, (op, register, value) in enumerate(tests):
            code.append(pack("=BBhI", op, register, len(tests) - i - 1 + block, value))
        code.append(pack("=BBhI", _JSET32_K, _ACCESS, 1, _READ_WRITE))
        code.append(pack("=BBhI", _JA, 0, 2, 0))
        code.append(pack("=BBhI", _MOV32_K, _R0, 0, 0))
        code.append(pack("=BBhI", _EXIT, 0, 0, 0))
    return b"".join(code)


def set_verdicts(cgroup: str, new: bytes, before: tuple[bytes, ...]) -> None:
    """Put *new* in the place of whichever of *before* stands first in the program that gpurun has on *cgroup*.

    Programs of others (systemd's) stay as they are.  Raises :class:`GpurunError`.
    """
    try:
        cgroup_fd = posix.open(cgroup, posix.O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    except OSError as e:
        raise StepError("open the container's cgroup", cgroup, e.errno) from None
    try:
        found = False
        for program_id in bpf.prog_query(cgroup_fd):
            try:
                old = bpf.prog_get_fd_by_id(program_id)
            except OSError as e:
                if e.errno == ENOENT:
                    continue
                raise
            try:
                if bpf.prog_name(old) == bpf.NAME:
                    found = True
                    _replace(cgroup_fd, old, new, before)
            finally:
                posix.close(old)
        if not found and new:
            program = bpf.prog_load(new + ALLOW_ALL)
            bpf.prog_attach(cgroup_fd, program)
            posix.close(program)
    except OSError as e:
        raise StepError("change the devices that the cgroup allows", cgroup, e.errno) from None
    finally:
        posix.close(cgroup_fd)


def _replace(cgroup_fd: int, old: int, new: bytes, before: tuple[bytes, ...]) -> None:
    code = bpf.prog_instructions(old)
    if not code:
        raise GpurunError("the kernel does not show the container's device program")
    known = max([prefix for prefix in before if code.startswith(prefix)], key=len, default=b"")
    wanted = new + code[len(known) :]
    if wanted == code:
        return
    program = bpf.prog_load(wanted)
    try:
        bpf.prog_attach(cgroup_fd, program, old)
    finally:
        posix.close(program)
