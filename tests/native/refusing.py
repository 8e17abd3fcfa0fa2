"""Seccomp filters as engines and sites have them: named system calls are answered with an errno."""

from __future__ import annotations

from collections.abc import Callable
from errno import EINVAL
from struct import pack

from gpurun.linux import libc
from gpurun.linux.seccomp import install

_NUMBERS = {"rt_sigtimedwait": 128, "pidfd_send_signal": 424} if libc._machine == "x86_64" else {"rt_sigtimedwait": 137}
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K


def refuse(calls: tuple[str, ...], errno: int) -> Callable[[], None]:
    """Installs, in the process that calls it, a filter for it and all that it starts: *calls* end with *errno*.

    It takes CAP_SYS_ADMIN, and sets no no_new_privs, which would keep newuidmap(1) from its work.
    """
    numbers = [_NUMBERS.get(name) or libc.NR[name] for name in calls]
    program = pack("HBBI", _LOAD, 0, 0, 0)  # seccomp_data.nr
    for number in numbers:
        program += pack("HBBI", _EQUALS, 0, 1, number) + pack("HBBI", _RETURN, 0, 0, _ERRNO | errno)
    program += pack("HBBI", _RETURN, 0, 0, _ALLOW)

    def before_exec() -> None:
        if install(program, 0):
            raise OSError(EINVAL, "seccomp")

    return before_exec
