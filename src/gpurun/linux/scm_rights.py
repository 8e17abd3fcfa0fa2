"""Open files beside the bytes of a message over a Unix socket (unix(7), SCM_RIGHTS)."""

from __future__ import annotations

from _socket import CMSG_SPACE, MSG_CMSG_CLOEXEC, SCM_RIGHTS, SOL_SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Iterable

_INT = 4  # bytes of a descriptor in a message


def send_with(channel: socket, data: bytes, files: Iterable[int]) -> int:
    """Send *data* with the descriptors *files*; how many bytes of it went, at least one.  Raises OSError."""
    rights = b"".join([fd.to_bytes(_INT, "little") for fd in files])
    return channel.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, rights)])


def receive_with(channel: socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """At most *size* bytes and *most* descriptors, which are closed on exec; ``b""`` when the other side has hung up.

    The kernel keeps back descriptors for which there is no room (RLIMIT_NOFILE): the caller is to count them.  Returns
    (data, descriptors).
    """
    data, control, _, _ = channel.recvmsg(size, CMSG_SPACE(_INT * most), MSG_CMSG_CLOEXEC)
    files: list[int] = []
    for level, kind, rights in control:
        if (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
            files += [int.from_bytes(rights[i : i + _INT], "little") for i in range(0, len(rights) - _INT + 1, _INT)]
    return data, files
