"""The foreground of ``run``, ``exec`` and ``restore``: our own terminal, connected to that of a container's process.

One loop passes keys in, output out and signals on, and it never waits for anything but poll(2): a program that does not read
its keys, or a terminal that was stopped with ^S, must not keep a signal from being served.  What one side does not take is
kept, and while as much as :data:`LIMIT` is kept the other side is not read.

Our standard streams are shared with other processes through their open file descriptions, so O_NONBLOCK is never set on
them.  Output goes to a description of our own where one can be had (open(2) by /proc/self/fd), to a socket by MSG_DONTWAIT,
and else in pieces that a stream takes without blocking once poll(2) has said so (pipe(7)).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import posix
from _socket import AF_UNIX, MSG_DONTWAIT, SOCK_STREAM, socket
from _stat import S_ISFIFO, S_ISSOCK
from _struct import pack, unpack_from
from errno import EIO, EPIPE
from fcntl import F_GETFL, F_SETFL, fcntl, ioctl
from select import EPOLLET, EPOLLIN, POLLIN, POLLOUT, epoll, poll

from gpurun.engine.signals import ENDING, NUMBERS, SIGCHLD, SIGURG, SIGWINCH, exit_code, send_signal, watch_signals
from gpurun.engine.terminal import TCGETS, TCSETS, TERMIOS_SIZE, TIOCSWINSZ
from gpurun.errors import oserror_text
from gpurun.linux.files import O_CLOEXEC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Bytes that are kept for a side that does not take them, before the other side is left unread.
LIMIT = 1 << 16
#: Bytes that can be written without blocking when poll(2) says so: to a pipe (PIPE_BUF), and to a terminal, whose driver
#: says so when it takes a single one.
_PIPE_PIECE, _TERMINAL_PIECE = 4096, 1
_TIOCGWINSZ, _TIOCGDEV = 0x5413, 0x80045432
_SIGCONT, _SIGTTIN, _SIGTTOU = NUMBERS["CONT"], NUMBERS["TTIN"], NUMBERS["TTOU"]
# Bits of struct termios that cfmakeraw(3) clears or sets.
_RAW_IFLAG = 0o1 | 0o2 | 0o10 | 0o40 | 0o100 | 0o200 | 0o400 | 0o2000
_RAW_LFLAG = 0o10 | 0o100 | 0o2 | 0o1 | 0o100000
_OPOST, _CSIZE, _PARENB, _CS8 = 0o1, 0o60, 0o400, 0o60
_PTMX = posix.makedev(5, 2)


def serve_foreground(pid: int, pidfd: int, master: int) -> int:
    """Connect our terminal to *master* until the process *pid* ends, passing signals on; returns its exit code.

    When our output is no longer read, *master* is closed, and the process finds its terminal hung up.
    """
    wake = watch_signals()
    foreground = Foreground(master)
    code = exit_code(pid)
    foreground.over = code is not None

    def on_wake() -> None:
        nonlocal code
        numbers = posix.read(wake, 4096)
        if SIGWINCH in numbers:  # once, however many there were
            foreground.resize()
        for number in numbers:
            if number == SIGCHLD:
                code = exit_code(pid) if code is None else code
                foreground.over = code is not None
            elif number in (SIGWINCH, SIGURG):
                continue
            elif code is not None:
                if number in ENDING:
                    foreground.hurry()
            else:
                if number == _SIGCONT:
                    foreground.make_raw()  # the shell had the terminal meanwhile
                try:
                    send_signal(pidfd, number)
                except ProcessLookupError:
                    pass  # it has ended: SIGCHLD is on its way

    try:
        foreground.serve(wake, on_wake)
    finally:
        foreground.restore()
    assert code is not None
    return code


class Foreground:
    """Our own terminal while a container's process has it: raw, its size followed, its bytes passed in both directions."""

    def __init__(self, master: int) -> None:
        self.over = False  # the process has ended
        self._hurried = False  # and the user does not want to wait for its last output
        self._left = -1  # bytes that are still read of it then
        self._master = master
        fcntl(master, F_SETFL, fcntl(master, F_GETFL) | posix.O_NONBLOCK)  # no other process has this file open
        self._tty = next((fd for fd in (2, 1, 0) if posix.isatty(fd)), -1)
        self._saved = b""
        self._keys, self._output = b"", b""
        self._stdin_open = True
        self._stdout = _Stdout()
        self._reopened: epoll | None = None  # while no process has the other side of the master open
        if self._tty >= 0:
            for number in (_SIGTTIN, _SIGTTOU):  # a job in the background is stopped, as every program at a terminal is
                _signal.signal(number, _signal.SIG_DFL)
            self.resize()
            self.make_raw()

    def hurry(self) -> None:
        """Wait for nothing any more: what the terminal holds is passed on as far as it can be written at once.

        Others may go on writing to it, so that is at most :data:`LIMIT` bytes, as much as a terminal holds (pty(7)).
        """
        if not self._hurried:
            self._hurried, self._left = True, LIMIT

    def resize(self) -> None:
        """Give the container's terminal the size of ours."""
        if self._tty >= 0 and self._master >= 0:
            try:
                ioctl(self._master, TIOCSWINSZ, ioctl(self._tty, _TIOCGWINSZ, bytes(8)))
            except OSError:
                pass  # ours has hung up: it has no size any more

    def make_raw(self) -> None:
        """Let every key reach the container as it is; not while another job has the terminal."""
        try:
            if self._tty >= 0 and posix.tcgetpgrp(self._tty) == posix.getpgrp():
                self._saved = self._saved or ioctl(self._tty, TCGETS, bytes(TERMIOS_SIZE))
                ioctl(self._tty, TCSETS, _raw(self._saved))
        except OSError:
            pass  # it has hung up, or is not our session's: then it has no jobs and no input

    def restore(self) -> None:
        """Give our terminal its settings back."""
        if self._saved:
            try:
                ioctl(self._tty, TCSETS, self._saved)
            except OSError:
                pass  # it has hung up
            self._saved = b""

    def serve(self, wake_fd: int, on_wake: Callable[[], None]) -> None:
        """Pass bytes until the process has ended and all of its output is out.

        *on_wake* is called when *wake_fd* can be read; it sets :attr:`over` and calls :meth:`hurry`.
        """
        poller = poll()
        watched: dict[int, int] = {}
        while True:
            wanted = {fd: events for fd, events in self._wanted(wake_fd).items() if events}
            for fd in (
                watched.keys() - wanted.keys()
            ):  # with no events asked for, poll(2) would still say that it has hung up
                poller.unregister(fd)
            for fd, events in wanted.items():
                if watched.get(fd) != events:
                    poller.register(fd, events)
            watched = wanted
            finishing = self.over and (self._hurried or not self._output)
            ready = dict(poller.poll(0 if finishing else None))
            if wake_fd in ready:
                on_wake()
            if self._reopened is not None and self._reopened.fileno() in ready:
                self._reopened.poll(0)
                ready[self._master] = POLLIN
            if 0 in ready:
                self._read_keys()
            if self._master in ready:
                self._serve_master(ready[self._master])
            if self._stdout.fd in ready:
                self._write_output()
            if finishing and not ready:
                return

    def _wanted(self, wake_fd: int) -> dict[int, int]:
        """Descriptor to the events (poll(2)) that it is to be asked for now."""
        read = POLLIN if len(self._output) < LIMIT and self._left else 0
        wanted = {wake_fd: POLLIN}
        if self._reopened is not None:
            wanted[self._reopened.fileno()] = 0 if self.over else read
        elif self._master >= 0:
            wanted[self._master] = read | (POLLOUT if self._keys and not self.over else 0)
        if self._stdin_open and not self.over and self._master >= 0:
            wanted[0] = POLLIN if len(self._keys) < LIMIT else 0
        wanted[self._stdout.fd] = POLLOUT if self._output else 0
        return wanted

    def _read_keys(self) -> None:
        if not self._saved:
            self.make_raw()  # we were started in the background
        try:
            data = posix.read(0, LIMIT)
        except BlockingIOError:
            return  # another process has set O_NONBLOCK, or was faster
        except OSError:
            data = b""  # it has hung up, or was never open
        if not data:
            self._stdin_open = False
            data = b"\4"  # end of file, as a terminal says it
        self._keys += data

    def _serve_master(self, events: int) -> None:
        try:
            if self._keys and events & POLLOUT:
                self._keys = self._keys[posix.write(self._master, self._keys) :]
            if len(self._output) >= LIMIT or not events & ~POLLOUT:
                return
            data = posix.read(self._master, LIMIT if self._left < 0 else self._left)
            self._left -= len(data) if self._left > 0 else 0
            self._output += data
        except BlockingIOError:
            return
        except OSError as e:
            if e.errno != EIO:
                raise
            # All have closed the other side.  An init system closes the console and opens it again: from now on poll(2)
            # would say at once that it is closed, and epoll(7) reports only the next change.
            if self._reopened is None:
                self._reopened = epoll()
                self._reopened.register(self._master, EPOLLIN | EPOLLET)
            return
        if self._reopened is not None:
            self._reopened.close()
            self._reopened = None

    def _write_output(self) -> None:
        try:
            self._output = self._output[self._stdout.write(self._output) :]
        except BlockingIOError:
            pass
        except OSError as e:
            if e.errno not in (EPIPE, EIO):
                from gpurun.log import warning

                warning(f"the container's terminal is closed, because its output cannot be written: {oserror_text(e)}")
            self._hang_up()

    def _hang_up(self) -> None:
        """The container's terminal is no longer read: let it end, as a terminal does whose line is cut (SIGHUP, EIO)."""
        if self._reopened is not None:
            self._reopened.close()
            self._reopened = None
        posix.close(self._master)
        self._master, self._output, self._keys = -1, b"", b""


class _Stdout:
    """Standard output, written without ever waiting for it, and without a change that others would see."""

    def __init__(self) -> None:
        self.fd, self._piece, self._socket = 1, LIMIT, False
        try:
            found = posix.fstat(1)
        except OSError:
            return  # the first write says it
        self._socket = S_ISSOCK(found.st_mode)
        terminal = posix.isatty(1)
        if (not terminal and not S_ISFIFO(found.st_mode)) or found.st_rdev == _PTMX:
            return  # a file never blocks; another ptmx would be another terminal
        flags = posix.O_WRONLY | posix.O_NONBLOCK | posix.O_NOCTTY | O_CLOEXEC
        try:
            self.fd = posix.open("/proc/self/fd/1", flags)
        except OSError:  # it is another user's: after su(1), or of a process with more rights
            self.fd = _own_terminal(flags) if terminal else 1
            if self.fd == 1:
                self._piece = _TERMINAL_PIECE if terminal else _PIPE_PIECE

    def write(self, data: bytes) -> int:
        """Write of *data* what fits; returns how many bytes.  Raises BlockingIOError for none, OSError."""
        if not self._socket:
            return posix.write(self.fd, data[: self._piece])
        s = socket(AF_UNIX, SOCK_STREAM, 0, self.fd)  # whatever it is: nothing of it is looked at
        try:
            return s.send(data, MSG_DONTWAIT)
        finally:
            s.detach()


def _own_terminal(flags: int) -> int:
    """Our controlling terminal, opened anew where that is standard output; else 1."""
    try:
        fd = posix.open("/dev/tty", flags)
        if ioctl(fd, _TIOCGDEV, bytes(4)) == ioctl(1, _TIOCGDEV, bytes(4)):
            return fd
        posix.close(fd)
    except OSError:
        pass  # we have none
    return 1


def _raw(state: bytes) -> bytes:
    """As cfmakeraw(3), but for the output: newlines come without carriage returns, which this terminal adds."""
    iflag, oflag, cflag, lflag = unpack_from("4I", state)
    changed = bytearray(state)
    changed[:16] = pack("4I", iflag & ~_RAW_IFLAG, oflag | _OPOST, cflag & ~(_CSIZE | _PARENB) | _CS8, lflag & ~_RAW_LFLAG)
    changed[17 + 5], changed[17 + 6] = 0, 1  # VTIME, VMIN
    return bytes(changed)
