"""process.terminal: the pty, --console-socket, and the foreground (config.md "Process", pty(7))."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime
from tests.native.terminal import Listener, read_all

MakeBundle = Callable[..., Bundle]


def with_terminal(bundle: Bundle, script: str) -> Bundle:
    bundle.sh(script)
    bundle.process["terminal"] = True
    return bundle


def test_console_socket_gets_one_message_with_the_master(runtime: Runtime, bundle: MakeBundle, listener: Listener) -> None:
    """go-runc wants 1 to 4095 bytes of name, conmon exactly one descriptor."""
    container = runtime.create(with_terminal(bundle(), "echo hello; cat"), "--console-socket", str(listener.path))
    data, fds = listener.message()
    assert 0 < len(data) < 4096
    assert len(fds) == 1
    assert container.start().rc == 0
    assert "hello" in read_all(fds[0], "hello")
    os.write(fds[0], b"typed\n")
    read_all(fds[0], "typed")
    os.write(fds[0], b"\4")
    assert container.wait() == 0
    os.close(fds[0])


@pytest.mark.conforms(
    "config-linux.md: Default Devices", level="MUST", what="/dev/console is the terminal, if `terminal` is enabled"
)
def test_the_terminal_is_the_session_s_and_all_streams(runtime: Runtime, bundle: MakeBundle, listener: Listener) -> None:
    script = "for i in 0 1 2; do readlink /proc/self/fd/$i; done; echo to-tty >/dev/tty; [ -c /dev/console ] && echo console"
    container = runtime.create(with_terminal(bundle(), script), "--console-socket", str(listener.path))
    _, (master,) = listener.message()
    container.start()
    shown = read_all(master).replace("\r", "").split("\n")
    container.wait()
    os.close(master)
    assert shown[:5] == ["/dev/pts/0"] * 3 + ["to-tty", "console"]


@pytest.mark.conforms("config.md: Process", level="MUST", what="`consoleSize` is the size of the terminal")
def test_console_size(runtime: Runtime, bundle: MakeBundle, listener: Listener) -> None:
    b = with_terminal(bundle(), "sleep 1000")
    b.process["consoleSize"] = {"height": 33, "width": 99}
    runtime.create(b, "--console-socket", str(listener.path))
    _, (master,) = listener.message()
    rows, columns = struct.unpack("4H", fcntl.ioctl(master, termios.TIOCGWINSZ, bytes(8)))[:2]
    assert (rows, columns) == (33, 99)
    os.close(master)


def settings(terminal: int) -> list[int]:
    """Its modes and speeds (termios(3)) without the control characters."""
    return termios.tcgetattr(terminal)[:6]


def test_the_settings_are_the_kernels(runtime: Runtime, bundle: MakeBundle, listener: Listener) -> None:
    """Who has the other end decides: a shim leaves it as it is, conmon sets it; a terminal needs its carriage returns."""
    fresh = os.openpty()
    container = runtime.create(
        with_terminal(bundle(), "echo one; echo two; sleep 1000"), "--console-socket", str(listener.path)
    )
    _, (master,) = listener.message()
    assert settings(master) == settings(fresh[0])
    container.start()
    assert read_all(master, "two\r\n") == "one\r\ntwo\r\n"
    pid_file = runtime.directory / "exec.pid"
    options = ("--tty", "--detach", "--console-socket", str(listener.path), "--pid-file", str(pid_file))
    assert runtime("exec", *options, container.id, "sh", "-c", "echo one; echo two").rc == 0
    _, (of_exec,) = listener.message()
    assert settings(of_exec) == settings(fresh[0])
    assert read_all(of_exec) == "one\r\ntwo\r\n"
    os.waitpid(int(pid_file.read_text()), 0)
    for fd in (master, of_exec, *fresh):
        os.close(fd)


@pytest.mark.parametrize(
    ("terminal", "options", "text"),
    [
        (True, [], "cannot allocate tty if runc will detach without setting console socket"),
        (False, ["--console-socket", "/nonexistent"], "cannot use console socket if runc will not detach or allocate tty"),
        (True, ["--console-socket", "/nonexistent/socket"], "no such file or directory"),
    ],
)
def test_what_does_not_go_together(
    runtime: Runtime, bundle: MakeBundle, terminal: bool, options: list[str], text: str
) -> None:
    b = bundle()
    b.process["terminal"] = terminal
    assert text in runtime.refused(b, *options)


def without_terminal(runtime: Runtime, *command: str) -> subprocess.CompletedProcess[str]:
    """A command whose session has no terminal, as a service's or a CI job's."""
    return subprocess.run(
        ["setsid", "--wait", *runtime.argv, *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        preexec_fn=runtime.bed.enter(None),
    )


@pytest.mark.not_on("crun", reason="runs, and serves a terminal that nobody sees")
def test_the_foreground_needs_a_terminal(runtime: Runtime, bundle: MakeBundle) -> None:
    """Nothing is made, and nothing waits for keys that never come."""
    b = with_terminal(bundle(), "echo ran; sleep 1000")
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    done = without_terminal(runtime, "run", "--bundle", str(b.directory), container_id)
    assert (done.returncode, done.stdout) == (1, "")
    assert "open /dev/tty: no such device or address" in done.stderr
    assert "does not exist" in without_terminal(runtime, "state", container_id).stderr
    container = runtime.start(bundle().sh("sleep 1000"))
    done = without_terminal(runtime, "exec", "--tty", container.id, "true")
    assert done.returncode != 0 and "open /dev/tty: no such device or address" in done.stderr


@pytest.mark.gpurun_only
@pytest.mark.attack("CVE-2025-52565", "/dev/pts/ptmx of the image is another file")
def test_a_ptmx_that_is_none(runtime: Runtime, bundle: MakeBundle, listener: Listener, leaks: Leaks) -> None:
    """CVE-2025-52565: what lies at /dev/pts/ptmx in the image is not to be trusted."""
    leaks.allow_rootfs_changes()
    b = with_terminal(bundle(), "true")
    b.config["mounts"] = [m for m in b.config["mounts"] if m["destination"] not in ("/dev/pts", "/dev")]
    (b.rootfs / "dev/pts").mkdir(parents=True)
    os.mknod(b.rootfs / "dev/pts/ptmx", 0o20666, os.makedev(1, 3))
    assert "not the ptmx of a devpts" in runtime.refused(b, "--console-socket", str(listener.path))


def in_terminal(runtime: Runtime, *command: str, keys: bytes = b"", stdout: Path | None = None) -> tuple[int, str]:
    """A command in the foreground of a terminal of our own, with its output in the file *stdout* if there is to be one.

    Returns its exit code and what was shown.
    """
    enter = runtime.bed.enter(None)
    pid, master = pty.fork()
    if pid == 0:
        try:
            enter()
            if stdout:
                os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT), 1)
            os.execv(runtime.path, [*runtime.argv, *command])
        finally:
            os._exit(99)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", 21, 77, 0, 0))
    before = settings(master)
    shown = read_all(master, "ready") if keys else ""
    os.write(master, keys)
    shown += read_all(master)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert settings(master) == before
    os.close(master)
    return code, shown


def run_in_terminal(runtime: Runtime, bundle: Bundle, keys: bytes = b"", stdout: Path | None = None) -> tuple[int, str]:
    """``run`` in the foreground of a terminal of our own."""
    container_id = runtime.new_id()
    runtime.prepare(bundle, container_id)
    return in_terminal(runtime, "run", "--bundle", str(bundle.directory), container_id, keys=keys, stdout=stdout)


def test_foreground(runtime: Runtime, bundle: MakeBundle) -> None:
    """A terminal shows lines, not a staircase."""
    code, shown = run_in_terminal(runtime, with_terminal(bundle(), "tty; echo two; exit 7"))
    assert (code, shown) == (7, "/dev/pts/0\r\ntwo\r\n")


def test_foreground_of_exec(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().sh("sleep 1000"))
    code, shown = in_terminal(runtime, "exec", "--tty", container.id, "sh", "-c", "tty; echo two; exit 7")
    assert (code, shown) == (7, "/dev/pts/0\r\ntwo\r\n")


@pytest.mark.not_on("crun", reason="leaves the terminal's carriage returns in the file")
def test_output_of_a_terminal_in_a_file(runtime: Runtime, bundle: MakeBundle) -> None:
    """What is shown on no terminal has no carriage returns: `runtime run container >file`."""
    out = runtime.directory / "shown"
    code, shown = run_in_terminal(runtime, with_terminal(bundle(), "echo one; echo two"), stdout=out)
    assert (code, shown, out.read_bytes()) == (0, "", b"one\ntwo\n")


def test_foreground_keys_reach_the_container(runtime: Runtime, bundle: MakeBundle) -> None:
    """Ctrl-C is a byte to us (our terminal is raw) and an interrupt to the container's."""
    script = "trap 'echo interrupted; exit 9' INT; echo ready; while true; do sleep 0.1; done"
    code, shown = run_in_terminal(runtime, with_terminal(bundle(), script), keys=b"\3")
    assert "interrupted" in shown
    assert code == 9


@pytest.mark.parametrize("command", ["run", "exec"])
def test_a_paste_that_nobody_reads(runtime: Runtime, bundle: MakeBundle, command: str) -> None:
    """Output goes on, and a signal reaches the program, though it reads none of the 300 KB that were pasted at it."""
    script = "trap 'echo told; exit 5' TERM; stty raw -echo; echo ready; while :; do echo out; sleep 0.1; done"
    if command == "run":
        container_id, b = runtime.new_id(), with_terminal(bundle(), script)
        runtime.prepare(b, container_id)
        words = ["run", "--bundle", str(b.directory), container_id]
    else:
        words = ["exec", "--tty", runtime.start(bundle().sh("sleep 1000")).id, "sh", "-c", script]
    enter = runtime.bed.enter(None)
    pid, master = pty.fork()
    if pid == 0:
        try:
            enter()
            os.execv(runtime.path, [*runtime.argv, *words])
        finally:
            os._exit(99)
    read_all(master, "ready")
    os.set_blocking(master, False)
    taken = 0
    while (
        taken < 300_000 and select.select([], [master], [], 60 if taken <= 20_000 else 1)[1]
    ):  # until nobody takes any more
        taken += os.write(master, b"x" * 4096)
    os.set_blocking(master, True)
    assert taken > 20_000
    read_all(master, "out")
    os.kill(pid, signal.SIGTERM)
    read_all(master, "told")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    os.close(master)


@pytest.mark.not_on("runc", reason="reads no more of its terminal, so the program waits for ever")
@pytest.mark.not_on("crun", reason="is not asked")
def test_a_reader_of_the_terminal_that_goes_away(runtime: Runtime, bundle: MakeBundle) -> None:
    """`gpurun run CONTAINER | head -1`: a first process, which SIGPIPE does not end, finds its terminal hung up."""
    b = with_terminal(bundle(), "trap '' HUP; while echo line; do :; done 2>/dev/null; exit 4")
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    out = runtime.directory / "pipe"
    os.mkfifo(out)
    reader = os.open(out, os.O_RDONLY | os.O_NONBLOCK)
    enter = runtime.bed.enter(None)
    pid, master = pty.fork()
    if pid == 0:
        try:
            enter()
            os.dup2(os.open(out, os.O_WRONLY), 1)
            os.execv(runtime.path, [*runtime.argv, "run", "--bundle", str(b.directory), container_id])
        finally:
            os._exit(99)
    assert select.select([reader], [], [], 10)[0]
    os.close(reader)
    read_all(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    os.close(master)


def test_pidfd_socket(runtime: Runtime, bundle: MakeBundle, listener: Listener) -> None:
    if "runc" in runtime.path and "1.1" in runtime("--version").out:
        pytest.skip("runc 1.1 has no --pidfd-socket")
    container = runtime.create(bundle().sh("sleep 1000"), "--pidfd-socket", str(listener.path))
    data, (pidfd,) = listener.message()
    assert data == b"standard"
    with open(f"/proc/self/fdinfo/{pidfd}") as info:
        assert f"Pid:\t{container.pid}\n" in info.read()
    os.close(pidfd)
