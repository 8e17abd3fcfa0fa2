"""The messages between the parent (create) and the container's init: a small set, over one Unix socket.

Without a starter the init is a copy of the parent, and nothing is said between starter and parent.

    starter → parent  child PID                 a process was made, the parent's to end and to reap
                      spawned PID               the init, in its namespaces and cgroup; the starter ends
                      failed TEXT               the init could not be made
    parent → starter  devices                   the plan will most likely have edits for devices: time to import for them
                      edits EDITS ROOTFS PROPAGATION LABEL
                                                the device edits of the plan to come: time to open their sources, and
                                                the rootfs
                      plan OOM_SCORE_ADJ NAMESPACES PLAN NAMES EDITS_CAME
                                                with the open files that both need (:func:`send_files`), by name

    init → parent   source INDEX                it is the turn of a bind mount whose source only the parent can open
                    uncovered INDEX ERRNO       a tree of the device edits in /sys could not be covered; not answered
                    hooks                       the mounts are made, the parent's hooks may run
                    ready                       all but the process itself is set up
                    created [LISTENER]          nothing can fail any more but execve, create may return; LISTENER: number,
                                                in the init, of the seccomp listener when the profile has an agent
                    failed TEXT                 the error, printed once, by the parent
    parent → init   go                          after spawned (what is lent to it is there), hooks, ready
                    source                      with the open tree

exec's processes (exec_init.py) are the starter, if there is one, the setter and the process, and speak the same way:

    starter → parent  move PID DEAD FILE        the setter PID is to be moved into the cgroup that came with the plan as the
                                                file of index FILE, and DEAD to be reaped, which could not be born
                                                there (:mod:`gpurun.ns.birth`); answered by go
                      child PID                 the setter; answered by go
    setter → parent   ready                     all but the process itself is set up; answered by go
                      child PID                 the process, as its user; answered by go; the setter ends
    process → parent  created [LISTENER]        as above; answered by go
    any → parent      failed TEXT

**To the parent** a message is text (:func:`report`): others of the container may have a hand in a process that they share a
pid namespace with (CAP_SYS_PTRACE), so the parent reads a grammar of a few words and numbers, of bounded size, and believes
only the process whose turn it is to speak, by what the kernel says of the sender (unix(7), SO_PASSCRED).  **From the
parent** it is a tuple, marshalled; both ends are the same build of the same interpreter.  Before either stands its length in
four bytes.
"""

from __future__ import annotations

import marshal
import posix

from gpurun.errors import GpurunError, StepError
from gpurun.linux.files import write_all
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Any

_MAX_MESSAGE = 64 << 20
_MAX_FILES = 16

#: The words that the parent hears, each with how many numbers may follow it; ``failed`` is followed by a text.
_WORDS = {
    "child": (1,),
    "spawned": (1,),
    "move": (3,),
    "source": (1,),
    "uncovered": (2,),
    "hooks": (0,),
    "ready": (0,),
    "created": (0, 1),
    "failed": (),
}
_MAX_REPORT = 1 << 16
_MAX_DIGITS = 9  # a pid, a descriptor, an index: none has more
_CREDENTIALS = 12  # struct ucred


class Descriptors(Record):
    """The open files that the init has, besides; -1 for none.  *trees*: the socket that brings mount trees."""

    channel: int  # the socket to the parent
    fifo: int
    mount_namespace: int = -1
    root: int = -1  # the mount tree of the rootfs, where it is opened ahead of the plan
    trees: int = -1
    console: int = -1  # the socket that takes the terminal's master
    nodes: int = -1  # a tmpfs with the device nodes, which an init in a user namespace cannot make
    journal: int = -1  # where the device edits write down what they make in the rootfs
    hook_stdout: int = -1  # files for what the hooks inside write, where annotations name some
    hook_stderr: int = -1


class Report(Record):
    """A message to the parent: one of the words above, its numbers, and the text of ``failed``.  *sender* is a pid."""

    word: str
    numbers: tuple[int, ...]
    text: str
    sender: int


# To the parent


def report(fd: int, word: str, *values: int | str) -> None:
    """Write one message to the parent; raises BrokenPipeError when it is gone."""
    data = " ".join([word, *[str(value) for value in values]]).encode("utf-8", "surrogateescape")[:_MAX_REPORT]
    write_all(fd, len(data).to_bytes(4, "little") + data)


def channel() -> tuple[int, int]:
    """A new channel: (the parent's end, the other end); the kernel says who sends what the parent reads."""
    from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_STREAM, socketpair

    ours, its = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    expect_reports(ours.fileno())
    return ours.detach(), its.detach()


def expect_reports(fd: int) -> None:
    """Have the kernel say who sends what is read from *fd* from now on.  To be called before the other side may speak."""
    from _socket import AF_UNIX, SO_PASSCRED, SOCK_STREAM, SOL_SOCKET, socket

    its = socket(AF_UNIX, SOCK_STREAM, 0, fd)
    its.setsockopt(SOL_SOCKET, SO_PASSCRED, 1)
    its.detach()


def receive_report(fd: int, senders: Container[int] | None) -> Report | None:
    """The next message of one of the processes *senders*, None for any; None when the other side has closed (or died within
    a message).

    Where the read fails nothing of the message is gone, and the next call begins with it again.  Raises
    :class:`GpurunError` for bytes that are not a message, and for a message of another process.
    """
    from _socket import MSG_PEEK

    # The length is looked at and stays where it is, then all is read at once.  report() writes a message at once too, and
    # the kernel keeps it in one piece, so no part of one comes by itself.
    head, sender = _receive(fd, 4, MSG_PEEK)
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "little")
    if size > _MAX_REPORT:
        raise GpurunError(f"process {sender} of the new container sent an invalid message: {size} bytes")
    data, writer = b"", sender
    while len(data) < 4 + size:
        chunk, other = _receive(fd, 4 + size - len(data))
        if not chunk:
            return None
        data += chunk
        writer = writer if other == sender else other
    if senders is not None and (sender not in senders or writer != sender):
        raise GpurunError(
            f"process {writer} sent a message in the name of the container's process: gpurun is being attacked"
        )
    return parse_report(data[4:], sender)


def parse_report(data: bytes, sender: int) -> Report:
    """The message *data* of *sender*; raises :class:`GpurunError` for anything that :func:`report` would not write."""
    word, _, rest = data.decode("utf-8", "surrogateescape").partition(" ")
    if word == "failed":
        return Report(word, (), rest, sender)
    numbers = rest.split(" ") if rest else []
    if len(numbers) not in _WORDS.get(word, ()) or not all(map(_is_number, numbers)):
        raise GpurunError(f"process {sender} of the new container sent an invalid message: {data[:40]!r}")
    return Report(word, tuple([int(text) for text in numbers]), "", sender)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def check_child(pid: int) -> int:
    """*pid* if it is a child of ours; raises :class:`GpurunError`.

    What a message asks for a process is done to it, by the host's root: no other than those that were made for us may be
    named.
    """
    try:
        posix.waitid(posix.P_PID, pid, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
    except ChildProcessError:
        raise GpurunError(f"process {pid} was reported as the container's, and is not a child of gpurun") from None
    return pid


def _receive(fd: int, size: int, flags: int = 0) -> tuple[bytes, int]:
    """(up to *size* bytes, the pid of their writer); no bytes and pid 0 when the other side is gone."""
    from _socket import AF_UNIX, CMSG_SPACE, MSG_CMSG_CLOEXEC, SCM_CREDENTIALS, SOCK_STREAM, socket

    its = socket(AF_UNIX, SOCK_STREAM, 0, fd)
    try:
        # No room for descriptors: those that come with a message are closed by the kernel.
        data, control, _, _ = its.recvmsg(size, CMSG_SPACE(_CREDENTIALS), MSG_CMSG_CLOEXEC | flags)
    except ConnectionResetError:  # the other side was killed before it had read all
        return b"", 0
    except BlockingIOError:
        raise
    except OSError as e:
        raise StepError("receive", "a message of the container's process", e.errno) from None
    finally:
        its.detach()
    sender = 0
    for _, kind, value in control:
        if kind == SCM_CREDENTIALS:
            sender = int.from_bytes(value[:4], "little")
    return data, sender


# From the parent


def send(fd: int, *message: Any) -> None:
    """Write one message; raises BrokenPipeError when the other side is gone."""
    data = marshal.dumps(message)
    write_all(fd, len(data).to_bytes(4, "little") + data)


def let_go(channel: int) -> None:
    """Tell the process on the other side to go on.  One that has ended is no error: what it said last is read next."""
    try:
        send(channel, "go")
    except BrokenPipeError:
        hang_up(channel)


def hang_up(channel: int) -> None:
    """Nothing more is sent: who waits for it, though a message could not be sent, ends."""
    from _socket import AF_UNIX, SHUT_WR, SOCK_STREAM, socket

    its = socket(AF_UNIX, SOCK_STREAM, 0, channel)
    try:
        its.shutdown(SHUT_WR)
    except OSError:
        pass  # the other side is gone
    finally:
        its.detach()


def send_files(channel: int, files: tuple[int, ...], *message: Any) -> None:
    """Write one message to the Unix socket *channel*, with the open *files* beside it (unix(7), SCM_RIGHTS)."""
    from _socket import AF_UNIX, SOCK_STREAM, socket

    from gpurun.linux.scm_rights import send_with

    data = marshal.dumps(message)
    its = socket(AF_UNIX, SOCK_STREAM, 0, channel)
    try:
        send_with(its, len(data).to_bytes(4, "little"), files)
    finally:
        its.detach()
    write_all(channel, data)


def receive_files(channel: int) -> tuple[tuple[Any, ...], list[int]] | None:
    """The message that :func:`send_files` has sent, and the files, closed on exec; None when the other side is gone.

    Returns (message, descriptors).
    """
    from _socket import AF_UNIX, SOCK_STREAM, socket

    from gpurun.linux.scm_rights import receive_with

    its = socket(AF_UNIX, SOCK_STREAM, 0, channel)
    try:
        head, files = receive_with(its, 4, _MAX_FILES)
    except ConnectionResetError:
        return None
    finally:
        its.detach()
    data = _read_exactly(channel, int.from_bytes(head, "little")) if len(head) == 4 else None
    if data is None:
        return None
    return marshal.loads(data), files


def receive(fd: int) -> tuple[Any, ...] | None:
    """The next message of the parent, or None when it has closed (or died within a message)."""
    head = _read_exactly(fd, 4)
    if head is None:
        return None
    size = int.from_bytes(head, "little")
    data = _read_exactly(fd, size) if size <= _MAX_MESSAGE else None
    if data is None:
        return None
    message: tuple[Any, ...] = marshal.loads(data)
    return message


def expect_go(channel: int) -> None:
    """Wait for the parent's ``go``; ends the process where the parent gave up (and has said why) or was killed."""
    if receive(channel) != ("go",):
        posix._exit(1)


def _read_exactly(fd: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            chunk = posix.read(fd, size - len(data))
        except ConnectionResetError:  # a socket, whose other side was killed before it had read all
            return None
        except BlockingIOError:
            raise
        except OSError as e:
            raise StepError("read", "the message of the process on the other side", e.errno) from None
        if not chunk:
            return None
        data += chunk
    return data
