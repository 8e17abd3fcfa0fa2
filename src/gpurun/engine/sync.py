"""The messages between the parent (create) and the container's init: a small set, over one Unix socket.

    starter → parent  child PID                 a process was made, the parent's to end and to reap
                      spawned PID               the init, in its namespaces and cgroup; the starter ends
                      failed TEXT               the init could not be made
    parent → starter  devices                   the plan will most likely have edits for devices: time to import for them
                      edits EDITS               the device edits of the plan to come: time to open their sources
                      plan NAMESPACES PLAN NAMES EDITS_CAME
                                                with the open files that both need (:func:`send_files`), by name

    init → parent   source INDEX                it is the turn of a bind mount whose source only the parent can open
                    hooks                       the mounts are made, the parent's hooks may run
                    ready                       all but the process itself is set up
                    created [LISTENER]          nothing can fail any more but execve, create may return; LISTENER: number,
                                                in the init, of the seccomp listener when the profile has an agent
                    failed TEXT                 the error, told once, by the parent
    parent → init   go                          after spawned (what is lent to it is there), hooks, ready
                    source                      with the open tree

A message is a tuple, marshalled, after its length in four bytes.  Both ends are the same build of the same interpreter.
exec's processes speak the same way (setns_init.py).
"""

from __future__ import annotations

import marshal
import posix

from gpurun.linux.files import write_all
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_MESSAGE = 64 << 20
_MAX_FILES = 16


class Descriptors(Record):
    """The open files that the init has, besides; -1 for none.  *trees*: the socket that brings mount trees."""

    channel: int  # the socket to the parent
    fifo: int
    mount_namespace: int = -1
    trees: int = -1
    console: int = -1  # the socket that takes the terminal's master
    nodes: int = -1  # a tmpfs with the device nodes, which an init in a user namespace cannot make
    journal: int = -1  # where the device edits write down what they make in the rootfs


def send(fd: int, *message: Any) -> None:
    """Write one message; raises BrokenPipeError when the other side is gone."""
    data = marshal.dumps(message)
    write_all(fd, len(data).to_bytes(4, "little") + data)


def send_files(channel: int, files: tuple[int, ...], *message: Any) -> None:
    """Write one message to the Unix socket *channel*, with the open *files* beside it (unix(7), SCM_RIGHTS)."""
    from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

    data = marshal.dumps(message)
    rights = b"".join([fd.to_bytes(4, "little") for fd in files])
    its = socket(AF_UNIX, SOCK_STREAM, 0, channel)
    try:
        its.sendmsg([len(data).to_bytes(4, "little")], [(SOL_SOCKET, SCM_RIGHTS, rights)])
    finally:
        its.detach()
    write_all(channel, data)


def receive_files(channel: int) -> tuple[tuple[Any, ...], list[int]] | None:
    """The message that :func:`send_files` has sent, and the files, closed on exec; None when the other side is gone."""
    from _socket import AF_UNIX, CMSG_SPACE, MSG_CMSG_CLOEXEC, SOCK_STREAM, socket

    its = socket(AF_UNIX, SOCK_STREAM, 0, channel)
    try:
        head, control, _, _ = its.recvmsg(4, CMSG_SPACE(4 * _MAX_FILES), MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None
    finally:
        its.detach()
    data = _read_exactly(channel, int.from_bytes(head, "little")) if len(head) == 4 else None
    if data is None:
        return None
    files = [int.from_bytes(rights[i : i + 4], "little") for _, _, rights in control for i in range(0, len(rights) - 3, 4)]
    return marshal.loads(data), files


def receive(fd: int) -> tuple[Any, ...] | None:
    """The next message, or None when the other side has closed (or died within a message)."""
    head = _read_exactly(fd, 4)
    if head is None:
        return None
    size = int.from_bytes(head, "little")
    data = _read_exactly(fd, size) if size <= _MAX_MESSAGE else None
    if data is None:
        return None
    message: tuple[Any, ...] = marshal.loads(data)
    return message


def _read_exactly(fd: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            chunk = posix.read(fd, size - len(data))
        except ConnectionResetError:  # a socket, whose other side was killed before it had read all
            return None
        if not chunk:
            return None
        data += chunk
    return data
