"""A small writer of rtnetlink(7): links set down, moved, set up; addresses read and added.

Only what moving a device into another network namespace needs.  Numbers in messages are of this machine's byte order.
"""

from __future__ import annotations

from _socket import SOCK_CLOEXEC, SOCK_RAW, socket
from _struct import pack, unpack_from

from gpurun.record import Record

_AF_NETLINK, _NETLINK_ROUTE = 16, 0
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP, _NLM_F_CREATE, _NLM_F_EXCL = 0x1, 0x4, 0x300, 0x400, 0x200
_RTM_NEWLINK, _RTM_GETLINK, _RTM_NEWADDR, _RTM_GETADDR = 16, 18, 20, 22
_IFLA_IFNAME, _IFLA_NET_NS_FD = 3, 28
_IFA_ADDRESS, _IFA_LOCAL, _IFA_BROADCAST, _IFA_FLAGS = 1, 2, 4, 8
_IFF_UP = 1
_IFA_F_PERMANENT = 0x80
_RT_SCOPE_UNIVERSE = 0


class Address(Record):
    """One address of a device: *attributes* are (type, raw value) as the kernel gave them, to be given back to it."""

    family: int
    prefix: int
    attributes: tuple[tuple[int, bytes], ...]


class RtNetlink:
    """A socket of the network namespace in which it was made; every method raises OSError with the kernel's errno."""

    def __init__(self) -> None:
        self._socket = socket(_AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, _NETLINK_ROUTE)
        self._sequence = 0

    def close(self) -> None:
        self._socket.close()

    def link_index(self, name: str) -> int:
        """The index of the device *name*; ENODEV when there is none."""
        body = _ifinfo(0) + _attribute(_IFLA_IFNAME, name.encode() + b"\0")
        answer = self._request(_RTM_GETLINK, 0, body)
        return int(unpack_from("i", answer[0], 4)[0])

    def link_name(self, index: int) -> str:
        """The name of the device *index*."""
        answer = self._request(_RTM_GETLINK, 0, _ifinfo(index))
        return _attributes(answer[0], 16).get(_IFLA_IFNAME, b"").rstrip(b"\0").decode()

    def set_down(self, index: int) -> None:
        self._request(_RTM_NEWLINK, _NLM_F_ACK, _ifinfo(index, 0, _IFF_UP))

    def set_up(self, index: int) -> None:
        self._request(_RTM_NEWLINK, _NLM_F_ACK, _ifinfo(index, _IFF_UP, _IFF_UP))

    def move(self, index: int, namespace_fd: int, name: str) -> None:
        """Move the device *index* into the network namespace and give it *name* there (``%d``: the first free number).

        Its index is kept, or the request fails (EBUSY) where another device there has it and this kernel knows no better.
        """
        body = _ifinfo(index) + _attribute(_IFLA_NET_NS_FD, pack("i", namespace_fd))
        self._request(_RTM_NEWLINK, _NLM_F_ACK, body + _attribute(_IFLA_IFNAME, name.encode() + b"\0"))

    def addresses(self, index: int) -> tuple[Address, ...]:
        """The permanent addresses of global scope of the device *index*: those that are lost when it is moved."""
        found = []
        for message in self._request(_RTM_GETADDR, _NLM_F_DUMP, pack("BBBBi", 0, 0, 0, 0, 0)):
            family, prefix, flags, scope, owner = unpack_from("BBBBi", message)
            attributes = _attributes(message, 8)
            if _IFA_FLAGS in attributes:
                flags = unpack_from("I", attributes[_IFA_FLAGS])[0]
            if owner != index or scope != _RT_SCOPE_UNIVERSE or not flags & _IFA_F_PERMANENT:
                continue
            keep = (_IFA_ADDRESS, _IFA_LOCAL, _IFA_BROADCAST)
            found.append(Address(family, prefix, tuple([(k, v) for k, v in attributes.items() if k in keep])))
        return tuple(found)

    def add_address(self, index: int, address: Address) -> None:
        body = pack("BBBBi", address.family, address.prefix, 0, _RT_SCOPE_UNIVERSE, index)
        body += b"".join([_attribute(kind, value) for kind, value in address.attributes])
        self._request(_RTM_NEWADDR, _NLM_F_ACK | _NLM_F_CREATE | _NLM_F_EXCL, body)

    def _request(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        """Send one message; the bodies of what comes back until the kernel says that this was all."""
        self._sequence += 1
        self._socket.send(pack("IHHII", 16 + len(body), kind, flags | _NLM_F_REQUEST, self._sequence, 0) + body)
        answers: list[bytes] = []
        while True:
            data = self._socket.recv(1 << 17)
            while len(data) >= 16:
                size, answer, _, sequence, _ = unpack_from("IHHII", data)
                if size < 16 or size > len(data):
                    raise OSError(74, "malformed rtnetlink message")  # EBADMSG
                payload, data = data[16:size], data[(size + 3) & ~3 :]
                if sequence != self._sequence:
                    continue  # the end of an earlier dump
                if answer in (_NLMSG_ERROR, _NLMSG_DONE):
                    errno = -unpack_from("i", payload)[0] if len(payload) >= 4 else 0
                    if errno:
                        raise OSError(errno, "rtnetlink")
                    return answers
                answers.append(payload)
            if not flags & (_NLM_F_ACK | _NLM_F_DUMP):
                return answers


def _ifinfo(index: int, flags: int = 0, change: int = 0) -> bytes:
    return pack("BBHiII", 0, 0, 0, index, flags, change)


def _attribute(kind: int, value: bytes) -> bytes:
    return pack("HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _attributes(message: bytes, start: int) -> dict[int, bytes]:
    found = {}
    while start + 4 <= len(message):
        size, kind = unpack_from("HH", message, start)
        if size < 4:
            break
        found[kind & 0x3FFF] = message[start + 4 : start + size]
        start += (size + 3) & ~3
    return found
