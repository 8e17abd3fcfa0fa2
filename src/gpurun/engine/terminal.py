"""Terminals: ``process.terminal`` and --console-socket (pty(7), ioctl_tty(2)).

The pty is made inside the container, from its own devpts; the master goes to whoever the caller named, or to us when we stay
in the foreground (:mod:`gpurun.engine.foreground`).  Nothing is trusted by its name: a ptmx is one if it is character device
5:2, inode 2, on devpts (CVE-2025-52565), and the other side of the pty is got from the master itself.
"""

from __future__ import annotations

import posix
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_STREAM, socket, socketpair
from _stat import S_ISCHR
from _struct import pack, unpack_from
from fcntl import ioctl

from gpurun.errors import GpurunError, Step, oserror_text
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import DEVPTS_SUPER_MAGIC, O_NOFOLLOW, O_PATH, fstatfs_type
from gpurun.linux.scm_rights import receive_with, send_with
from gpurun.ns.mount import attach, private_copy
from gpurun.ns.path import make_target, open_in_root, refuse_kernels_own, reopen

TCGETS, TCSETS, TIOCSWINSZ, TERMIOS_SIZE = 0x5401, 0x5402, 0x5414, 60
_TIOCSCTTY, _TIOCSPTLCK, _TIOCGPTPEER = 0x540E, 0x40045431, 0x5441
_ONLCR = 0o4
_PTMX = "/dev/pts/ptmx"


# The init's side


def open_pty(root_fd: int, proc_fd: int, size: tuple[int, int] | None) -> tuple[int, int]:
    """(master, peer) of a new pty of the container's devpts; *size* is (rows, columns).

    *proc_fd* is a verified /proc, by which the very file that was looked at is opened.
    """
    with Step("make the terminal from", _PTMX):
        ptmx = open_in_root(root_fd, _PTMX, O_PATH | O_NOFOLLOW)
        _check_ptmx(ptmx)
        master = reopen(ptmx, posix.O_RDWR, proc_fd)
        posix.close(ptmx)
        ioctl(master, _TIOCSPTLCK, pack("i", 0))
        peer = ioctl(master, _TIOCGPTPEER, posix.O_RDWR | posix.O_NOCTTY | O_CLOEXEC)
        if size and size[0] and size[1]:
            ioctl(master, TIOCSWINSZ, pack("4H", size[0], size[1], 0, 0))
    return master, peer


def _check_ptmx(fd: int) -> None:
    found = posix.fstat(fd)
    is_ptmx = found.st_rdev == posix.makedev(5, 2) and S_ISCHR(found.st_mode) and found.st_ino == 2
    if not is_ptmx or fstatfs_type(fd) != DEVPTS_SUPER_MAGIC:
        raise GpurunError(f"{_PTMX} of the container is not the ptmx of a devpts: process.terminal needs a devpts mount")


def bind_console(root_fd: int, peer: int) -> None:
    """Mount the container's side of the terminal on /dev/console."""
    with Step("mount the terminal on", "/dev/console"):
        # Private: /dev/pts may be the host's, which would get what the container mounts over its console.
        tree = private_copy(peer, "", recursive=False)
        target = make_target(root_fd, "/dev/console", directory=False, check=refuse_kernels_own)
        refuse_kernels_own(target, "/dev/console")
        attach(tree, target)
        posix.close(target)
        posix.close(tree)


def take_terminal(peer: int) -> None:
    """Make *peer* our standard streams and our controlling terminal; we lead a session already."""
    for fd in (0, 1, 2):
        posix.dup2(peer, fd)
    posix.close(peer)
    ioctl(0, _TIOCSCTTY, 0)


def set_up_terminal(root_fd: int, proc_fd: int, size: tuple[int, int] | None, console: int) -> None:
    """Make the terminal of a container's init, and send its master by the socket *console*; *size* as in :func:`open_pty`.

    Raises :class:`GpurunError`.
    """
    master, peer = open_pty(root_fd, proc_fd, size)
    bind_console(root_fd, peer)
    send_master(console, master)
    take_terminal(peer)


def send_master(socket_fd: int, master: int) -> None:
    """Hand the master over: one message with a name (which no reader uses) and exactly one descriptor.

    Raises :class:`GpurunError`.
    """
    s = socket(AF_UNIX, SOCK_STREAM, 0, socket_fd)
    try:
        send_with(s, b"/dev/ptmx", (master,))
    except OSError as e:
        raise GpurunError(f"send the terminal to the console socket: {oserror_text(e)}") from None
    finally:
        s.close()
        posix.close(master)


# The caller's side


def check_console(terminal: bool, detached: bool, console_socket: str) -> None:
    """--console-socket goes with a detached container that has a terminal, and only with that.

    Raises :class:`GpurunError` in runc's words.
    """
    if terminal and detached and not console_socket:
        raise GpurunError("cannot allocate tty if runc will detach without setting console socket")
    if console_socket and not (terminal and detached):
        raise GpurunError("cannot use console socket if runc will not detach or allocate tty")
    if terminal and not detached and not any(posix.isatty(fd) for fd in (2, 1, 0)):
        try:
            posix.close(posix.open("/dev/tty", posix.O_RDWR | O_CLOEXEC))
        except OSError as e:  # as runc has it: who waits here for a terminal's keys would wait for ever
            what = f"open /dev/tty: {oserror_text(e).rpartition(': ')[2]}"
            raise GpurunError(
                f"{what}: process.terminal is true, and none of stdin, stdout and stderr is a terminal"
            ) from None


def connect_socket(path: str) -> int:
    """A descriptor connected to the Unix socket *path*, which may be longer than the 107 bytes of an address."""
    directory, _, name = path.rpartition("/")
    with Step("connect to the socket", path), Fd(posix.open(directory or "/", O_PATH | O_CLOEXEC)) as at:
        s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)
        s.connect(f"/proc/self/fd/{at}/{name}")
        return s.detach()


def send_pidfd(path: str, pidfd: int, kind: bytes) -> None:
    """Hand *pidfd* to the Unix socket *path*; *kind* says what it is of: ``standard`` (an init) or ``setns`` (exec).

    Raises :class:`GpurunError`.
    """
    s = socket(AF_UNIX, SOCK_STREAM, 0, connect_socket(path))
    try:
        send_with(s, kind, (pidfd,))
    except OSError as e:
        raise GpurunError(f"send the pidfd to {path}: {oserror_text(e)}") from None
    finally:
        s.close()


def console_pair() -> tuple[int, int]:
    """Two connected descriptors: over one the init sends the master, from the other :func:`receive_master` takes it.

    Returns (end of the init, our end).
    """
    ours, its = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    return ours.detach(), its.detach()


def receive_master(socket_fd: int) -> int:
    """The master that the init has sent, made ready for the foreground; the socket is closed.

    Raises :class:`GpurunError` when none came.
    """
    s = socket(AF_UNIX, SOCK_STREAM, 0, socket_fd)
    try:
        data, files = receive_with(s, 4096, 1)
    finally:
        s.close()
    if not data or not files:
        raise GpurunError("the container's init did not send its terminal")
    (master,) = files
    _clear_onlcr(master)
    return master


def _clear_onlcr(fd: int) -> None:
    """Newlines are to arrive as they are written: our own terminal makes them two characters, and a file needs no more."""
    state = bytearray(ioctl(fd, TCGETS, bytes(TERMIOS_SIZE)))
    oflag = unpack_from("I", state, 4)[0] & ~_ONLCR
    state[4:8] = pack("I", oflag)
    ioctl(fd, TCSETS, bytes(state))
