"""``--log journald:NAME`` and ``--log syslog:NAME``: records for the daemons of the host, each a datagram to a socket.

Reference: systemd.io, "Native Journal Protocol"; RFC 3164 as the C library's syslog(3) writes it.
"""

from __future__ import annotations

from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, socket

from gpurun.errors import GpurunError, oserror_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SOCKETS = {"journald": "/run/systemd/journal/socket", "syslog": "/dev/log"}
_PRIORITIES = {"error": 3, "warning": 4, "info": 6, "debug": 7}
_DAEMON = 3  # LOG_DAEMON


def sender(kind: str, name: str) -> Callable[[str, str], None]:
    """What sends (level, message) to the daemon *kind* under the *name*; raises :class:`GpurunError` if it is not there."""
    s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)
    try:
        s.connect(SOCKETS[kind])
    except OSError as e:
        raise GpurunError(f"cannot log to {kind}: {SOCKETS[kind]}: {oserror_text(e)}") from None
    form = journal_entry if kind == "journald" else syslog_line

    def send(level: str, message: str) -> None:
        try:
            s.send(form(_PRIORITIES[level], name, message))
        except OSError:  # a daemon that has gone away must not hide the exit code
            pass

    return send


def journal_entry(priority: int, name: str, message: str) -> bytes:
    """An entry of the journal; the message is sent with its length, for it may hold line breaks."""
    data = message.encode("utf-8", "replace")
    head = f"PRIORITY={priority}\nSYSLOG_IDENTIFIER={name}\nMESSAGE\n".encode("utf-8", "replace")
    return head + len(data).to_bytes(8, "little") + data + b"\n"


def syslog_line(priority: int, name: str, message: str) -> bytes:
    """A message for syslogd, which adds the time if there is none."""
    return f"<{_DAEMON << 3 | priority}>{name}: {message}".encode("utf-8", "replace")
