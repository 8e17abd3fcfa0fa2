"""seccomp(2): asking what the kernel can do, installing a filter, and execve(2) as the very next system call after it."""

from __future__ import annotations

import _ctypes
from _struct import pack
from errno import EFAULT, EINVAL
from posix import strerror

from gpurun.linux import libc
from gpurun.linux.libc import NR, address, buffer, cstring, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SECCOMP_SET_MODE_FILTER = 1

SECCOMP_FILTER_FLAG_LOG = 2
SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4
SECCOMP_FILTER_FLAG_NEW_LISTENER = 8
SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV = 32  # Linux 5.19; only with NEW_LISTENER
#: The flags that the kernel gets, and two of our own beside them: for a filter under which a process can wait, and for
#: one under which it can close a descriptor (can_wait and can_close in gpurun.security.seccomp).
KERNEL_FLAGS = 0xFFFFFFFF
CAN_WAIT = 1 << 32
CAN_CLOSE = 1 << 33

_EXECVE = 221 if libc._machine == "aarch64" else 59

#: Instructions in one filter (BPF_MAXINSNS).
MAX_INSTRUCTIONS = 4096
INSTRUCTION_SIZE = 8


def flags_supported(flags: int) -> bool:
    """Whether this kernel takes a filter with these flags; False for every value when it has no seccomp filters at all."""
    try:
        syscall(NR["seccomp"], SECCOMP_SET_MODE_FILTER, flags, None)
    except OSError as e:
        return e.errno == EFAULT  # the flags were looked at, and then the filter, which is nowhere
    return False


def install(program: bytes, flags: int) -> int:
    """Install *program* (struct sock_filter[]) in this thread; returns the listener's descriptor, 0 without NEW_LISTENER.

    Needs no_new_privs or CAP_SYS_ADMIN in the user namespace (EACCES); cannot be undone.
    """
    code = buffer(program)
    return syscall(NR["seccomp"], SECCOMP_SET_MODE_FILTER, flags & KERNEL_FLAGS, _sock_fprog(program, code))


def prepare_execve(
    path: str, argv: tuple[str, ...], env: dict[str, str], program: bytes = b"", flags: int = 0
) -> Callable[[], OSError]:
    """A function that installs *program* (if there is one) and becomes *path*, by two system calls with no other between or
    before them: all they need has been made ready, so the filter need allow no more than execve.

    The function returns only when a call failed: the error, whose ``filename`` is the name of the call.
    """
    code = buffer(program)
    path_buffer = buffer(cstring(path))
    argv_vector, argv_strings = _vector(argv)
    env_vector, env_strings = _vector(tuple([f"{k}={v}" for k, v in env.items()]))
    fprog = _sock_fprog(program, code) if program else None
    keep = (code, path_buffer, argv_vector, argv_strings, env_vector, env_strings, fprog)
    raw = libc._syscall
    rehearsal = (NR["seccomp"], 0xFFFF, 0, 0, 0, 0, 0)
    install_it = (NR["seccomp"], SECCOMP_SET_MODE_FILTER, flags & KERNEL_FLAGS, address(fprog), 0, 0, 0) if program else None
    execute_it = (_EXECVE, address(path_buffer), address(argv_vector), address(env_vector), 0, 0, 0)

    def go() -> OSError:
        if install_it is not None:
            # This call fails.  What it allocates and frees the next two take again, and need not ask the kernel for memory.
            raw(*rehearsal)
            if raw(*install_it) == -1:
                return _error("seccomp", keep)
        raw(*execute_it)
        return _error("execve", keep)

    return go


def _error(call: str, _keep: object) -> OSError:
    """The error of the last raw call; *_keep* has the buffers that had to live until now."""
    errno: int = _ctypes.get_errno()  # type: ignore[attr-defined]
    return OSError(errno, strerror(errno), call)


def _sock_fprog(program: bytes, code: Any) -> Any:
    """struct sock_fprog: unsigned short len; struct sock_filter *filter."""
    size = len(program) // INSTRUCTION_SIZE
    if not 0 < size <= MAX_INSTRUCTIONS or len(program) % INSTRUCTION_SIZE:
        raise OSError(EINVAL, "")
    return buffer(pack("HxxxxxxQ", size, address(code)))


def _vector(items: tuple[str, ...]) -> tuple[Any, Any]:
    strings = [buffer(cstring(item)) for item in items]
    return buffer(pack(f"{len(strings) + 1}Q", *[address(s) for s in strings], 0)), strings
