"""Signals: their names, and the state in which a container's process must find them (signal(7))."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import posix
from errno import ENOSYS, EPERM

from gpurun.decimals import decimal
from gpurun.errors import GpurunError

NUMBERS = {
    name: number
    for number, name in enumerate(
        [
            "HUP",
            "INT",
            "QUIT",
            "ILL",
            "TRAP",
            "ABRT",
            "BUS",
            "FPE",
            "KILL",
            "USR1",
            "SEGV",
            "USR2",
            "PIPE",
            "ALRM",
            "TERM",
            "STKFLT",
            "CHLD",
            "CONT",
            "STOP",
            "TSTP",
            "TTIN",
            "TTOU",
            "URG",
            "XCPU",
            "XFSZ",
            "VTALRM",
            "PROF",
            "WINCH",
            "IO",
            "PWR",
            "SYS",
        ],
        1,
    )
}
NUMBERS.update(IOT=6, POLL=29, CLD=17, UNUSED=31)
SIGKILL, SIGCHLD, SIGURG, SIGWINCH = [NUMBERS[name] for name in ("KILL", "CHLD", "URG", "WINCH")]

#: Real-time signals that programs may use; the C library keeps those before for itself (nptl(7)).
SIGRTMIN, SIGRTMAX = 34, 64
#: Signals that report a fault of our own, and those that cannot be caught or blocked.
_FAULTS = frozenset([NUMBERS[name] for name in ("ILL", "TRAP", "BUS", "FPE", "SEGV")])
_UNCHANGEABLE = frozenset([NUMBERS["KILL"], NUMBERS["STOP"], 32, 33])
#: All that we can be sent and that is not about ourselves.
FROM_OTHERS = frozenset(range(1, SIGRTMAX + 1)) - _FAULTS - _UNCHANGEABLE
#: Those that ask a process to end.
ENDING = tuple([NUMBERS[name] for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM")])


def parse_signal(text: str) -> int:
    """The number of the signal *text*: a number, or a name with or without ``SIG`` in any case, also ``RTMIN+n``.

    Raises :class:`GpurunError` for any other text.
    """
    number = decimal(text, SIGRTMAX)
    if number is not None:
        return number
    name = text.upper()
    name = name[3:] if name.startswith("SIG") else name
    if name in NUMBERS:
        return NUMBERS[name]
    for base, first, sign in (("RTMIN", SIGRTMIN, 1), ("RTMAX", SIGRTMAX, -1)):
        if name == base:
            return first
        steps = decimal(name[6:], 30) if name.startswith(base + ("+" if sign > 0 else "-")) else None
        if steps is not None:
            return first + sign * steps
    raise GpurunError(f'unknown signal "{text}"')


def send_signal(pidfd: int, number: int) -> None:
    """pidfd_send_signal(2); raises ProcessLookupError when the process has ended."""
    try:
        _signal.pidfd_send_signal(pidfd, number)
    except PermissionError:
        from gpurun.security.lsm import leave_own_profile

        if not leave_own_profile():
            raise
        _signal.pidfd_send_signal(pidfd, number)


def block_signals() -> set[int]:
    """Block every signal but those that tell of a fault of our own; returns them, for :func:`wait_signal`."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, FROM_OTHERS)
    return set(FROM_OTHERS)


def wait_signal(blocked: set[int]) -> int:
    """The number of the next of the *blocked* signals (sigwait(3)).

    Where a seccomp filter refuses rt_sigtimedwait(2), which that is, handlers write them to a pipe.
    """
    try:
        return int(_signal.sigwait(blocked))
    except OSError as e:
        if e.errno not in (ENOSYS, EPERM):
            raise
    from select import POLLIN, poll

    if not _watched:
        _watched.append(watch_signals())
    waiting = poll()
    waiting.register(_watched[0], POLLIN)
    waiting.poll()
    return posix.read(_watched[0], 1)[0]


#: The descriptor of :func:`watch_signals`, once :func:`wait_signal` has taken to it.
_watched: list[int] = []


def exit_code(pid: int) -> int | None:
    """The exit code of our child *pid* as a shell would say it (128 + N for signal N), None while it runs."""
    ended, status = posix.waitpid(pid, posix.WNOHANG)
    if not ended:
        return None
    code = posix.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def watch_signals() -> int:
    """A non-blocking descriptor from which the numbers of the signals that we get can be read, a byte each."""
    read, write = posix.pipe2(posix.O_CLOEXEC | posix.O_NONBLOCK)
    _signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in FROM_OTHERS:
        _signal.signal(number, _ignore)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    return read


def _ignore(number: int, frame: object) -> None:
    """A handler, so that the signal interrupts and is written to the wake-up descriptor; SIG_IGN would lose it."""


def end_on_signals() -> None:
    """Let the signals that ask a process to end do so for a first process of a pid namespace, which the kernel shields from
    all but SIGKILL (pid_namespaces(7)).

    For an init that waits to be started: who stops a container that never ran would else wait for its patience to end.
    execve(2) gives these signals their default disposition back.
    """
    for number in (*ENDING, *range(SIGRTMIN, SIGRTMAX + 1)):
        _signal.signal(number, _end)


def _end(number: int, frame: object) -> None:
    posix._exit(128 + number)


def default_signals() -> None:
    """Give every signal its default disposition and unblock all.

    CPython ignores SIGPIPE and SIGXFSZ, callers hand others down ignored, and ignored dispositions survive execve(2).
    """
    from gpurun.linux.libc import NR, syscall  # loaded long before in whoever is about to exec

    for number in range(1, 65):
        if number in (32, 33):  # the C library does not let them be changed, but they are inherited too
            syscall(NR["rt_sigaction"], number, bytes(32), None, 8)
        elif number not in (9, 19):  # KILL and STOP cannot be changed
            _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
