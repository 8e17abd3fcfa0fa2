"""seccomp(2): asking what the kernel can do, installing a filter, and execve(2) as the very next system call after it."""

from __future__ import annotations

import _ctypes
from _struct import pack
from errno import EFAULT, EINVAL

from gpurun.linux import libc
from gpurun.linux.libc import NR, address, buffer, cstring, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SECCOMP_SET_MODE_FILTER = 1

SECCOMP_FILTER_FLAG_TSYNC = 1
SECCOMP_FILTER_FLAG_LOG = 2
SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4
SECCOMP_FILTER_FLAG_NEW_LISTENER = 8
SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV = 32  # Linux 5.19; only with NEW_LISTENER

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
    return syscall(NR["seccomp"], SECCOMP_SET_MODE_FILTER, flags, _sock_fprog(program, code))


def execve_filtered(program: bytes, flags: int, path: str, argv: tuple[str, ...], env: dict[str, str]) -> None:
    """Install *program*, then execve(2): between the two this process makes no other system call, so the filter need allow
    no more than execve.  Returns never; raises :class:`OSError` when either fails (``filename`` says which)."""
    code = buffer(program)
    fprog = _sock_fprog(program, code)
    argv_vector, keep_argv = _vector(argv)
    env_vector, keep_env = _vector(tuple([f"{k}={v}" for k, v in env.items()]))
    # The first call fails; it is there so that what a call allocates has been allocated (and freed) before, and
    # the two that count need not ask the kernel for memory.
    rehearsal = (NR["seccomp"], 0xFFFF, 0, 0, 0, 0, 0)
    install_it = (NR["seccomp"], SECCOMP_SET_MODE_FILTER, flags, address(fprog), 0, 0, 0)
    path_buffer = buffer(cstring(path))
    execute_it = (_EXECVE, address(path_buffer), address(argv_vector), address(env_vector), 0, 0, 0)
    raw = libc._syscall
    raw(*rehearsal)
    if raw(*install_it) == -1:
        raise _error("seccomp")
    raw(*execute_it)
    raise _error("execve", code, keep_argv, keep_env)


def _error(call: str, *_keep: Any) -> OSError:
    """The error of the last raw call; *_keep* are buffers that had to live until now."""
    errno: int = _ctypes.get_errno()  # type: ignore[attr-defined]
    return OSError(errno, "", call)


def _sock_fprog(program: bytes, code: Any) -> Any:
    """struct sock_fprog: unsigned short len; struct sock_filter *filter."""
    size = len(program) // INSTRUCTION_SIZE
    if not 0 < size <= MAX_INSTRUCTIONS or len(program) % INSTRUCTION_SIZE:
        raise OSError(EINVAL, "")
    return buffer(pack("HxxxxxxQ", size, address(code)))


def _vector(items: tuple[str, ...]) -> tuple[Any, Any]:
    strings = [buffer(cstring(item)) for item in items]
    return buffer(pack(f"{len(strings) + 1}Q", *[address(s) for s in strings], 0)), strings
