"""The other end of a container's terminal: a console socket that listens, and what the terminal shows."""

from __future__ import annotations

import array
import os
import select
import socket
import time
from pathlib import Path


class Listener:
    """A console socket, as containerd's shim and conmon listen on one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        here = os.open(path.parent, os.O_PATH)
        self.socket.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)
        self.socket.listen(1)
        self.socket.settimeout(10)

    def message(self) -> tuple[bytes, list[int]]:
        """What came with the one message: its data and its descriptors."""
        connection, _ = self.socket.accept()
        with connection:
            data, control, _, _ = connection.recvmsg(4096, 1024)
            fds = array.array("i")
            for level, kind, content in control:
                assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
                fds.frombytes(content)
            assert connection.recv(1) == b"", "more than one message"
        return data, list(fds)


def read_all(master: int, until: str = "", timeout: float = 10) -> str:
    """What the terminal shows, until *until* or its end."""
    shown = ""
    end = time.monotonic() + timeout
    while not until or until not in shown:
        if not select.select([master], [], [], max(0, end - time.monotonic()))[0]:
            raise AssertionError(f"the terminal shows only {shown!r}")
        try:
            data = os.read(master, 4096)
        except OSError:
            break  # EIO: nobody has the other side open any more
        if not data:
            break
        shown += data.decode()
    return shown
