"""The foreground of a terminal, with processes of our own in place of a container's (pty(7), termios(3), poll(2))."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shlex
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpurun.engine import foreground

TIMEOUT = 30.0  # seconds; only a hang gets there
WRITE = 1 if os.uname().machine == "x86_64" else 64  # the number of write(2)


@dataclass
class Session:
    """Somebody's terminal with ``serve_foreground`` at it, which serves a process at a terminal of its own."""

    pid: int
    terminal: int
    ahead: bytes = b""  # what has been read beyond the text that was waited for

    def wait(self) -> int:
        """Its exit code."""
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        raise AssertionError("the foreground does not end")

    def shows(self, text: str) -> str:
        """What is shown until *text*, or until the end where that is empty; the next call begins behind it."""
        shown, self.ahead = self.ahead, b""
        while not text or text.encode() not in shown:
            assert select.select([self.terminal], [], [], TIMEOUT)[0], f"the terminal shows only {shown!r}"
            try:
                data = os.read(self.terminal, 65536)
            except OSError:
                break  # EIO: the foreground has ended
            if not data:
                break
            shown += data
        end = shown.find(text.encode()) + len(text) if text and text.encode() in shown else len(shown)
        shown, self.ahead = shown[:end], shown[end:]
        return shown.decode()


def serve(script: str, streams: Callable[[], None] = lambda: None) -> None:
    """In a child: a shell that runs *script* at a new terminal, served in the foreground by us; never returns."""
    code = 99
    try:
        shell, master = pty.fork()
        if shell == 0:
            for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.execvp("sh", ["sh", "-c", script])
        streams()
        code = foreground.serve_foreground(shell, os.pidfd_open(shell), master)
    finally:
        os._exit(code)


@pytest.fixture
def at_terminal() -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def start(script: str, streams: Callable[[], None] = lambda: None) -> Session:
        pid, terminal = pty.fork()
        if pid == 0:
            serve(script, streams)
        sessions.append(Session(pid, terminal))
        return sessions[-1]

    yield start
    for session in sessions:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(session.pid, os.WNOHANG)[0] == 0:
                os.kill(session.pid, signal.SIGKILL)
                os.waitpid(session.pid, 0)
        with contextlib.suppress(OSError):
            os.close(session.terminal)


def paste(terminal: int, data: bytes) -> int:
    """Write *data* as long as somebody takes it; returns how much was taken.

    Until the foreground has taken what it keeps, a slow machine is waited for; then a second without a reader is the end.
    """
    os.set_blocking(terminal, False)
    taken = 0
    while taken < len(data) and select.select([], [terminal], [], TIMEOUT if taken <= foreground.LIMIT else 1)[1]:
        with contextlib.suppress(BlockingIOError):
            taken += os.write(terminal, data[taken : taken + 4096])
    os.set_blocking(terminal, True)
    return taken


def test_a_paste_that_nobody_reads_stops_nothing(at_terminal: Callable[..., Session]) -> None:
    """Output goes on and SIGTERM is passed on, though the program reads none of a large paste."""
    session = at_terminal("stty raw -echo; trap 'echo told; exit 5' TERM; echo ready; while :; do echo out; sleep 0.1; done")
    session.shows("ready")
    assert paste(session.terminal, b"x" * 600_000) > foreground.LIMIT
    session.shows("out")
    os.kill(session.pid, signal.SIGTERM)
    session.shows("told")
    assert session.wait() == 5


def test_a_paste_arrives_whole_when_it_is_read(at_terminal: Callable[..., Session]) -> None:
    """What is kept for a program that reads late is not lost, and is in order."""
    data = b"".join(b"%07d\n" % number for number in range(40_000))
    session = at_terminal("stty raw -echo; echo ready; read -r first </dev/null; sleep 0.5; head -c 320000 | cksum; exit 3")
    session.shows("ready")
    os.set_blocking(session.terminal, False)
    taken, shown = 0, b""
    while taken < len(data):
        readable, writable, _ = select.select([session.terminal], [session.terminal], [], TIMEOUT)
        assert readable or writable
        if writable:
            with contextlib.suppress(BlockingIOError):
                taken += os.write(session.terminal, data[taken : taken + 4096])
        if readable:
            shown += os.read(session.terminal, 65536)
    os.set_blocking(session.terminal, True)
    shown += session.shows("").encode()
    expected = os.popen("for i in $(seq 0 39999); do printf '%07d\\n' $i; done | cksum").read().split()  # noqa: S605
    assert shown.decode().split()[-2:] == expected
    assert session.wait() == 3


def the_shell(session: Session) -> int:
    """The pid of the process that is served."""
    with open(f"/proc/{session.pid}/task/{session.pid}/children") as children:
        return int(children.read().split()[0])


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, "it never comes to that"
        time.sleep(0.01)


def sleeps_in_write(pid: int) -> bool:
    with open(f"/proc/{pid}/syscall") as found:
        return found.read().startswith(f"{WRITE} 0x1 ")


def talker(told: Path) -> str:
    """A program that writes without end, and notes SIGTERM in the file *told*: a shell would first finish its write."""
    program = f"""
import os, signal
def tell(*_):
    os.close(os.open({str(told)!r}, os.O_CREAT))
    os._exit(5)
signal.signal(signal.SIGTERM, tell)
os.write(1, b"ready\\n")
while True:
    os.write(1, b"x" * 1000)
"""
    return f"exec {sys.executable} -IS -c {shlex.quote(program)}"


@pytest.mark.skipif(os.geteuid() != 0, reason="reads /proc/PID/syscall: `sudo make test` runs it")
def test_a_terminal_that_takes_nothing_stops_no_signal(at_terminal: Callable[..., Session], tmp_path: Path) -> None:
    """A slow line, or ^S: signals reach the program, and a second one does not wait for its last output."""
    told = tmp_path / "told"
    session = at_terminal(talker(told))
    session.shows("ready")
    wait_until(lambda: sleeps_in_write(the_shell(session)))
    os.kill(session.pid, signal.SIGTERM)
    wait_until(told.exists)
    wait_until(lambda: not os.path.exists(f"/proc/{session.pid}/task/{session.pid}/children") or not children_of(session))
    os.kill(session.pid, signal.SIGTERM)
    assert session.wait() == 5


def children_of(session: Session) -> str:
    with open(f"/proc/{session.pid}/task/{session.pid}/children") as children:
        return children.read()


def test_a_second_signal_loses_no_output_that_is_taken(at_terminal: Callable[..., Session]) -> None:
    """What comes after the end of the process makes haste, and that is no reason to drop what can be written at once."""
    session = at_terminal("trap '' TERM; echo ready; i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); done; exit 5")
    shown = session.shows("ready")
    for _ in range(50):
        os.kill(session.pid, signal.SIGTERM)
    assert "line 299" in shown + session.shows("")
    assert session.wait() == 5


def test_who_makes_haste_gets_what_the_terminal_holds(tmp_path: Path) -> None:
    """The process has ended and a second signal has come before its last output was read."""
    out = tmp_path / "out"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            master, slave = pty.openpty()
            os.write(slave, b"last words")
            os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
            served = foreground.Foreground(master)
            served.over = True
            served.hurry()
            served.serve(os.pipe()[0], lambda: None)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert out.read_bytes() == b"last words"


def test_keys_are_the_programs(at_terminal: Callable[..., Session]) -> None:
    """^C, ^Z and ^S reach the program's terminal, which makes of them what it has been told to."""
    session = at_terminal(
        "trap 'echo interrupted; exit 9' INT; trap 'echo stopped' TSTP; echo ready; while :; do sleep 0.05; done"
    )
    session.shows("ready")
    os.write(session.terminal, b"\x1a")
    session.shows("stopped")
    os.write(session.terminal, b"\x13\x11\x03")
    session.shows("interrupted")
    assert session.wait() == 9


def test_many_sizes(at_terminal: Callable[..., Session]) -> None:
    """Of a thousand changes of size the last one counts."""
    session = at_terminal("echo ready; head -n 1 >/dev/null; stty size; exit 3")
    session.shows("ready")
    for rows in range(1, 1001):
        fcntl.ioctl(session.terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, 77, 0, 0))
        os.kill(session.pid, signal.SIGWINCH)
    os.write(session.terminal, b"\r")
    session.shows("1000 77")
    assert session.wait() == 3


def test_a_hangup_is_passed_on(at_terminal: Callable[..., Session], tmp_path: Path) -> None:
    told = tmp_path / "told"
    session = at_terminal(f"trap 'echo told >{told}; exit 6' HUP; echo ready; while :; do sleep 0.05; done")
    session.shows("ready")
    os.close(session.terminal)
    assert session.wait() == 6
    assert told.exists()


def test_a_program_outlives_a_hangup(at_terminal: Callable[..., Session], tmp_path: Path) -> None:
    """It ignores SIGHUP, as under nohup(1): it finds its terminal gone, and its exit code is ours."""
    over = tmp_path / "over"
    script = f"trap '' HUP; echo ready; while echo out; do sleep 0.01; done 2>/dev/null; echo over >{over}; exit 4"
    session = at_terminal(script)
    session.shows("ready")
    os.close(session.terminal)
    assert session.wait() == 4
    assert over.exists()


def test_a_reader_that_goes_away(at_terminal: Callable[..., Session]) -> None:
    """`gpurun run … | head -1`: the program is told as by a terminal whose line is cut, and nothing waits for ever."""
    reader, writer = os.pipe()
    session = at_terminal(
        "trap '' PIPE HUP; echo ready; while echo out; do :; done 2>/dev/null; exit 4", lambda: streams(1, writer, reader)
    )
    os.close(writer)
    assert os.read(reader, 5) == b"ready"
    os.close(reader)
    assert session.wait() == 4


def streams(number: int, fd: int, *others: int) -> None:
    """Make *fd* the stream *number*, and close *others*."""
    os.dup2(fd, number)
    for other in (fd, *others):
        os.close(other)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_streams_of_others_stay_as_they_are(at_terminal: Callable[..., Session], tmp_path: Path, kind: str) -> None:
    """Standard output is shared with other processes: nothing sets O_NONBLOCK on it, and a full one stops no signal."""
    if kind == "pipe":
        reader, writer = os.pipe()
    else:
        reader, writer = (end.detach() for end in socket.socketpair())
    told = tmp_path / "told"
    session = at_terminal(talker(told), lambda: streams(1, os.dup(writer), reader))
    wait_until(lambda: not select.select([], [writer], [], 0)[1])
    assert os.get_blocking(writer)
    os.kill(session.pid, signal.SIGTERM)
    wait_until(told.exists)
    os.close(writer)
    shown = b""
    while data := os.read(reader, 1 << 20):
        shown += data
    assert session.wait() == 5
    assert shown.startswith(b"ready") and len(shown) > 4096
    os.close(reader)


def test_much_output(at_terminal: Callable[..., Session]) -> None:
    """All of it arrives, and the last of it after the program has ended."""
    reader, writer = os.pipe()
    size = 20_000_000
    session = at_terminal(
        f"stty -opost; head -c {size} /dev/zero; printf end; exit 3", lambda: streams(1, os.dup(writer), reader)
    )
    os.close(writer)
    got, last = 0, b""
    while data := os.read(reader, 1 << 20):
        got, last = got + len(data), (last + data)[-3:]
    assert (got, last, session.wait()) == (size + 3, b"end", 3)
    os.close(reader)


def test_a_program_that_closes_its_terminal_gets_signals(at_terminal: Callable[..., Session], tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    script = f"exec </dev/null >/dev/null 2>&1; trap 'exit 7' TERM; echo closed >{closed}; while :; do sleep 0.05; done"
    session = at_terminal(script)
    wait_until(closed.exists)
    os.kill(session.pid, signal.SIGTERM)
    assert session.wait() == 7


def test_a_terminal_that_is_opened_again(at_terminal: Callable[..., Session], tmp_path: Path) -> None:
    """As an init system does with its console: what it shows then is seen, and keys reach it."""
    go = tmp_path / "go"
    os.mkfifo(go)
    script = f"tty=$(tty); echo ready; exec </dev/null >/dev/null 2>&1; read -r x <{go}; "
    script += "exec <$tty >$tty; echo again; read -r x; echo got $x"
    session = at_terminal(script)
    session.shows("ready")
    with open(go, "w") as fifo:
        wait_until(lambda: only_epoll(session.pid))
        fifo.write("go\n")
    session.shows("again")
    os.write(session.terminal, b"key\r")
    session.shows("got key")
    assert session.wait() == 0


def only_epoll(pid: int) -> bool:
    """Whether the foreground *pid* has seen that nobody has the program's terminal open."""
    names = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            names.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return "anon_inode:[eventpoll]" in names


def test_a_job_in_the_background(at_terminal: Callable[..., Session]) -> None:
    """It leaves the terminal as it is, which is another job's; what it shows is seen."""

    def another_group() -> None:
        pid = os.fork()
        if pid:
            os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os.setpgid(0, 0)

    pid, terminal = pty.fork()
    if pid == 0:
        another_group()
        serve("echo out; exit 8")
    session = Session(pid, terminal)
    before = termios.tcgetattr(terminal)[:6]
    try:
        session.shows("out")
        assert termios.tcgetattr(terminal)[:6] == before
        assert session.wait() == 8
    finally:
        os.close(terminal)
