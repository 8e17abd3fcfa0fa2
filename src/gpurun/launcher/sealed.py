"""The interpreter that the compiled front has sealed before it executed it (front_launcher.c), and its environment.

The file that such a process runs is a read-only detached mount, so a copy of the process may become the container's: nothing
in the container can write to the host's interpreter by /proc/PID/exe (CVE-2019-5736).  Nor is the caller's environment in
the memory of the copy, where tokens and passwords may be: the front keeps it in a file (memfd_create(2)).  Of that, the
process takes over the variables that gpurun itself reads; :func:`all_variables` has the rest, for programs of the host's.
"""

from __future__ import annotations

import posix
import sys

#: How the front says it: ``-X gpurun-sealed=DESCRIPTOR``, the descriptor of the environment.
OPTION = "gpurun-sealed"
#: What gpurun reads of its own environment: names, and beginnings of names.
_OWN = frozenset(
    (b"HOME", b"USER", b"PATH", b"NOTIFY_SOCKET", b"TERM", b"COLUMNS", b"NO_COLOR", b"DBUS_SESSION_BUS_ADDRESS", b"TZ")
)
_OWN_PREFIXES = (b"GPURUN_", b"XDG_", b"LISTEN_", b"NVIDIA_", b"LC_", b"LANG")


def is_sealed() -> bool:
    """Whether this process runs a sealed interpreter."""
    return OPTION in sys._xoptions


class _Rest:
    """Where the whole environment is; -1 when it is not needed any more."""

    fd = -1


def _variables() -> list[tuple[bytes, bytes]]:
    fd = _Rest.fd
    pairs = [text.partition(b"=") for text in posix.pread(fd, posix.fstat(fd).st_size, 0).split(b"\0")]
    return [(name, value) for name, equals, value in pairs if name and equals]


def take_own_variables() -> None:
    """Take over what gpurun reads; called first of all, once.  Of a variable that is there twice the first counts."""
    _Rest.fd = int(str(sys._xoptions[OPTION]))
    posix.set_inheritable(_Rest.fd, False)
    for name in [*posix.environ]:  # the interpreter sets LC_CTYPE where there is no environment (PEP 538)
        posix.unsetenv(name)
        del posix.environ[name]
    for name, value in _variables():
        if (name in _OWN or name.startswith(_OWN_PREFIXES)) and name not in posix.environ:
            posix.environ[name] = value
            posix.putenv(name, value)  # for the C library, and for programs that are started with its environment


def all_variables() -> dict[bytes, bytes]:
    """The whole environment that gpurun was called with, for programs that are the host's.

    In a sealed process only for one that will make no copy of itself any more: what it returns stays in memory.
    """
    if _Rest.fd < 0:
        return dict(posix.environ)
    return {**dict(reversed(_variables())), **posix.environ}


def drop_the_rest() -> None:
    """No program will need the rest of the environment: no copy of this process is to have it open at its birth."""
    if _Rest.fd >= 0:
        posix.close(_Rest.fd)
        _Rest.fd = -1
