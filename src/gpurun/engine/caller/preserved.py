"""Descriptors of the caller's that a process inherits besides its streams: --preserve-fds, systemd's sockets.

To be asked before anything is imported that opens descriptors of its own (libffi does, with ``_ctypes``).
"""

from __future__ import annotations

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def listen_fds(environ: Mapping[bytes, bytes] = posix.environ) -> int:
    """How many sockets systemd has handed to us for the container (sd_listen_fds(3))."""
    count = environ.get(b"LISTEN_FDS", b"")
    if environ.get(b"LISTEN_PID") != b"%d" % posix.getpid() or not count.isdigit() or len(count) > 9:
        return 0
    return int(count)


def preserved_fds(count: int) -> tuple[int, ...]:
    """Those of the *count* descriptors from 3 on that the caller has handed to us, for a process to inherit.

    The others are skipped, as crun does it: Podman names the last one, and there may be gaps before.  One that is open but
    closed on exec is not the caller's: it is ours, and must not get into a container.
    """
    if count <= 0:
        return ()
    found = []
    for name in posix.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if 3 <= fd < 3 + count and posix.get_inheritable(fd):
                found.append(fd)
        except OSError:
            pass  # that of the directory itself
    return tuple(sorted(found))
