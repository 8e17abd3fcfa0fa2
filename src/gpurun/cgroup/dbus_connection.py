"""As much of D-Bus as a conversation with systemd takes: EXTERNAL authentication, calls, signals.

The field's library for this is jeepney; it costs 11 ms to import (enum, typing, struct, socket, os), as much as all of
``create`` may cost, and one method call is not worth that.  The wire format is :mod:`gpurun.formats.dbus`.

Specification: dbus.freedesktop.org/doc/dbus-specification.html, "Authentication Protocol".
"""

from __future__ import annotations

import _socket
import posix
from time import monotonic

from gpurun.errors import GpurunError, strerror_lower
from gpurun.formats.dbus import ERROR, SIGNAL, method_call, take_message
from gpurun.linux.files import CHUNK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.formats.dbus import Message


_NO_REPLY = "org.freedesktop.DBus.Error.NoReply"  # what a bus daemon says when the other side has left


_MAX_LINE = 1 << 14  # of the authentication, as libdbus has it


class DBusError(GpurunError):
    """The other side answered with an error; *name* is its D-Bus name."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{text} ({name})" if text else name)
        self.name = name
        self.text = text


class DBusLost(GpurunError):
    """The other side is gone, whatever it has done before; it may be back soon."""


class DBusTimeout(GpurunError):
    """Nothing came within the time that was given."""


class Bus:
    """A connection; every wait is bounded by *timeout* seconds (one for each method).  Use :meth:`close` when done."""

    def __init__(self, address: str, timeout: float = 30.0, unnamed: bool = False) -> None:
        """Connect to the socket *address* (``@`` begins an abstract one) as the effective user.

        *unnamed* leaves it to the other side to see who we are: in a user namespace our own number is not the one it sees.
        Raises OSError when no process listens there, :class:`GpurunError` when we are not let in.
        """
        self.timeout = timeout
        self._serial = 0
        self._pending = b""
        self._signals: list[Message] = []
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect("\0" + address[1:] if address.startswith("@") else address)
            self._authenticate(unnamed)
        except BaseException:
            self._socket.close()
            raise

    def _authenticate(self, unnamed: bool) -> None:
        words = "\r\nDATA" if unnamed else " " + str(posix.geteuid()).encode().hex()
        # BEGIN goes with AUTH, and nothing before the answer: a message that systemd reads together with BEGIN stays where
        # it is until more comes.
        self._socket.sendall(f"\0AUTH EXTERNAL{words}\r\nBEGIN\r\n".encode())
        line = self._line()
        if unnamed and line.startswith(b"DATA"):
            line = self._line()
        if not line.startswith(b"OK "):
            raise GpurunError(f"D-Bus refuses the connection: {line.decode('ascii', 'replace')}")

    def _line(self) -> bytes:
        while b"\r\n" not in self._pending:
            if len(self._pending) > _MAX_LINE:
                raise GpurunError("the server at the D-Bus socket does not speak D-Bus")
            self._receive_more(monotonic() + self.timeout)
        line, _, self._pending = self._pending.partition(b"\r\n")
        return line

    def close(self) -> None:
        """Close the connection; no other method can be called after that."""
        self._socket.close()

    def call(
        self, destination: str, path: str, interface: str, member: str, signature: str = "", *body: Any
    ) -> tuple[Any, ...]:
        """Call a method and return the values of its answer.

        Raises :class:`DBusError` for an error in answer, :class:`DBusTimeout` when none comes, :class:`DBusLost` when the
        other side hangs up.
        """
        self._serial += 1
        serial = self._serial
        try:
            self._socket.sendall(method_call(serial, destination, path, interface, member, signature, body))
        except OSError as e:
            raise DBusLost(f"D-Bus connection lost: {strerror_lower(e.errno)}") from None
        deadline = monotonic() + self.timeout
        while True:
            message = self._next(deadline)
            if message.kind == SIGNAL:
                self._signals.append(message)
            elif message.reply_to == serial:
                if message.kind == ERROR:
                    text = message.body[0] if message.body and isinstance(message.body[0], str) else ""
                    if message.error == _NO_REPLY:
                        raise DBusLost(text)
                    raise DBusError(message.error, text)
                return message.body

    def signal(self, member: str, deadline: float) -> Message:
        """The next signal *member*, one that came during a call included; others are dropped.  *deadline* is monotonic.

        It counts in seconds.
        """
        while True:
            message = self._signals.pop(0) if self._signals else self._next(deadline)
            if message.kind == SIGNAL and message.member == member:
                return message

    def _next(self, deadline: float) -> Message:
        while True:
            try:
                taken = take_message(self._pending)
            except ValueError as e:
                raise GpurunError(str(e)) from None
            if taken is not None:
                message, size = taken
                self._pending = self._pending[size:]
                return message
            self._receive_more(deadline)

    def _receive_more(self, deadline: float) -> None:
        left = deadline - monotonic()
        if left <= 0:
            raise DBusTimeout("no answer over D-Bus")
        self._socket.settimeout(left)
        try:
            chunk = self._socket.recv(CHUNK)
        except TimeoutError:
            raise DBusTimeout("no answer over D-Bus") from None
        except OSError as e:
            raise DBusLost(f"D-Bus connection lost: {strerror_lower(e.errno)}") from None
        if not chunk:
            raise DBusLost("D-Bus connection lost: the other side hung up")
        self._pending += chunk
