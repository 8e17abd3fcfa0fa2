"""Open files beside a message: what comes is closed on exec, and what does not come can be counted."""

from __future__ import annotations

import os
import socket

from gpurun.linux.scm_rights import receive_with, send_with


def test_files_come_closed_on_exec() -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read, write = os.pipe()
    os.set_inheritable(read, True)
    assert send_with(ours, b"x", (read, write)) == 1
    data, files = receive_with(its, 16, 4)
    assert data == b"x" and len(files) == 2 and not any(os.get_inheritable(fd) for fd in files)
    os.write(files[1], b"through")
    assert os.read(read, 16) == b"through"
    ours.close()
    assert receive_with(its, 16, 4) == (b"", [])
    its.close()
    for fd in (read, write, *files):
        os.close(fd)


def test_files_for_which_there_is_no_room_do_not_come() -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    null = os.open("/dev/null", os.O_RDONLY)
    send_with(ours, b"x", [null] * 5)
    data, files = receive_with(its, 16, 2)
    assert data == b"x" and 2 <= len(files) < 5
    for fd in (null, *files):
        os.close(fd)
    ours.close()
    its.close()
