"""Bring up the loopback device of a new network namespace (netdevice(7))."""

from __future__ import annotations

from _socket import AF_INET, SOCK_CLOEXEC, SOCK_DGRAM, socket
from _struct import pack
from fcntl import ioctl

_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_IFF_RUNNING = 0x40


def loopback_up() -> None:
    """Set ``lo`` up in the network namespace we are in; raises OSError."""
    s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)
    try:
        ioctl(s.fileno(), _SIOCSIFFLAGS, pack("16sH22x", b"lo", _IFF_UP | _IFF_RUNNING))
    finally:
        s.close()
