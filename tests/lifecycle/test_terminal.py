"""process.terminal: the pty, --console-socket, and the foreground (config.md "Process", pty(7))."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from collections.abc import Callable

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


@pytest.mark.gpurun_only
def test_newlines_arrive_as_they_are_written(runtime: Runtime, bundle: MakeBundle, listener: Listener) -> None:
    container = runtime.create(with_terminal(bundle(), "echo one; echo two"), "--console-socket", str(listener.path))
    _, (master,) = listener.message()
    container.start()
    assert read_all(master) == "one\ntwo\n"
    container.wait()
    os.close(master)


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


@pytest.mark.gpurun_only
def test_a_ptmx_that_is_none(runtime: Runtime, bundle: MakeBundle, listener: Listener, leaks: Leaks) -> None:
    """CVE-2025-52565: what lies at /dev/pts/ptmx in the image is not to be trusted."""
    leaks.allow_rootfs_changes()
    b = with_terminal(bundle(), "true")
    b.config["mounts"] = [m for m in b.config["mounts"] if m["destination"] not in ("/dev/pts", "/dev")]
    (b.rootfs / "dev/pts").mkdir(parents=True)
    os.mknod(b.rootfs / "dev/pts/ptmx", 0o20666, os.makedev(1, 3))
    assert "no ptmx of a devpts" in runtime.refused(b, "--console-socket", str(listener.path))


def run_in_terminal(runtime: Runtime, bundle: Bundle, keys: bytes = b"") -> tuple[int, str]:
    """``run`` in the foreground of a terminal of our own; (exit code, what was shown)."""
    container_id = runtime.new_id()
    runtime._prepare(bundle, container_id)
    enter = runtime.bed.enter(None)
    pid, master = pty.fork()
    if pid == 0:
        try:
            enter()
            os.execv(runtime.path, [*runtime.argv, "run", "--bundle", str(bundle.directory), container_id])
        finally:
            os._exit(99)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("4H", 21, 77, 0, 0))
    shown = read_all(master, "ready") if keys else ""
    os.write(master, keys)
    shown += read_all(master)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(master)
    return code, shown


def test_foreground(runtime: Runtime, bundle: MakeBundle) -> None:
    code, shown = run_in_terminal(runtime, with_terminal(bundle(), "tty; exit 7"))
    assert code == 7
    assert "/dev/pts/0" in shown


def test_foreground_keys_reach_the_container(runtime: Runtime, bundle: MakeBundle) -> None:
    """Ctrl-C is a byte to us (our terminal is raw) and an interrupt to the container's."""
    script = "trap 'echo interrupted; exit 9' INT; echo ready; while true; do sleep 0.1; done"
    code, shown = run_in_terminal(runtime, with_terminal(bundle(), script), keys=b"\3")
    assert "interrupted" in shown
    assert code == 9


def test_pidfd_socket(runtime: Runtime, bundle: MakeBundle, listener: Listener) -> None:
    if "runc" in runtime.path and "1.1" in runtime("--version").out:
        pytest.skip("runc 1.1 has no --pidfd-socket")
    container = runtime.create(bundle().sh("sleep 1000"), "--pidfd-socket", str(listener.path))
    data, (pidfd,) = listener.message()
    assert data == b"standard"
    with open(f"/proc/self/fdinfo/{pidfd}") as info:
        assert f"Pid:\t{container.pid}\n" in info.read()
    os.close(pidfd)
