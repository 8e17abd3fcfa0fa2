"""A seccomp agent: takes listeners over a Unix socket and answers the notifications (seccomp_unotify(2))."""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import socket
import struct
import threading
from pathlib import Path
from typing import Any

from tests.native.waiting import wait_until

SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND = 0xC0502100, 0xC0182101
CONTINUE = 1


class Agent:
    """Lets every call go on, but for those of *deny*, a number of a system call → errno.

    *states* are the ContainerProcessState documents that came, *seen* the numbers of all calls it was asked about.
    """

    def __init__(self, path: Path, deny: dict[int, int]) -> None:
        self.path, self.deny = path, deny
        self.states: list[dict[str, Any]] = []
        self.seen: list[int] = []
        self._stop_r, self._stop_w = os.pipe()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def wait(self, count: int) -> list[dict[str, Any]]:
        """The documents, once *count* of them have come: they lie in the socket until our thread has its turn."""
        wait_until(lambda: len(self.states) >= count)
        return self.states

    def close(self) -> None:
        os.close(self._stop_w)
        self._thread.join()
        self._socket.close()
        os.close(self._stop_r)

    def _serve(self) -> None:
        poll = select.poll()
        for fd in (self._stop_r, self._socket.fileno()):
            poll.register(fd, select.POLLIN)
        listeners: list[int] = []
        while True:
            for fd, event in poll.poll():
                if fd == self._stop_r:
                    for listener in listeners:
                        os.close(listener)
                    return
                if fd == self._socket.fileno():
                    listeners.append(self._take())
                    poll.register(listeners[-1], select.POLLIN)
                elif event & select.POLLIN:
                    self._answer(fd)
                else:  # nobody is left under the filter
                    poll.unregister(fd)

    def _take(self) -> int:
        connection, _ = self._socket.accept()
        with connection:
            data, control, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(64))
            fds = array.array("i")
            fds.frombytes(control[0][2])
            assert len(control) == 1 and len(fds) == 1
            while not data.endswith(b"}}"):  # some leave the connection open
                data += connection.recv(1 << 16)
        self.states.append(json.loads(data))
        return fds[0]

    def _answer(self, listener: int) -> None:
        number = answer(listener, self.deny)
        if number is not None:
            self.seen.append(number)


def answer(listener: int, deny: dict[int, int]) -> int | None:
    """Answer the next notification of *listener*; returns the number of the call, None for one that was killed meanwhile."""
    notification = bytearray(80)  # struct seccomp_notif: id, pid, flags, struct seccomp_data
    try:
        fcntl.ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, notification)
        cookie, _, _, number = struct.unpack_from("=QIIi", notification)
        errno = deny.get(number, 0)
        response = bytearray(struct.pack("=QqiI", cookie, 0, -errno, 0 if errno else CONTINUE))
        fcntl.ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, response)
    except FileNotFoundError:
        return None
    return int(number)
