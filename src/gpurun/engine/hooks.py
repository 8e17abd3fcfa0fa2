"""OCI hooks: programs run at the stages of the life of a container (config.md "POSIX-platform Hooks").

A hook gets exactly the environment it names, the state on stdin, the default signal dispositions and no descriptor but 0, 1
and 2.  What it has where it names none is its stage's: on the host the runtime's own environment, in the container's
namespaces before pivot_root an empty one (who shares these could read it), in the container the container's.  What an
image sets never reaches a program of the host.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import posix
import select
import time

from gpurun.engine.signals import SIGKILL, default_signals
from gpurun.errors import GpurunError, clean, strerror_lower
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import close_range
from gpurun.oci.config import OciHook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    Execve = Callable[[str, tuple[str, ...], dict[str, str]], None]

#: How much of a hook's output is kept for the error message.
_OUTPUT_LIMIT = 64 << 10
#: How long the output is still read after the hook itself has ended: a daemon it left behind may hold the pipe open.
_DRAIN_SECONDS = 1.0
#: Descriptors for the hooks' stdout and stderr; -1: what they write there is in the error if they fail.
_COLLECTED = (-1, -1)


def run_hooks(
    name: str,
    hooks: tuple[OciHook, ...],
    state: str,
    env: dict[str, str],
    before_exec: Callable[[], None] | None = None,
    outputs: tuple[int, int] = _COLLECTED,
    execve: Execve = posix.execve,
) -> None:
    """Run *hooks* of the stage *name* in order with the text *state* on stdin; *env* is for hooks that name none.

    Raises :class:`GpurunError` at the first that fails, with its output, in runc's words.  *outputs* are descriptors that
    stdout and stderr go to instead, -1 for none.  *before_exec* runs in the child, and so does *execve*, which has to
    become the hook.
    """
    for index, hook in enumerate(hooks):
        failure = run_hook(hook, state, env, before_exec, outputs, execve)
        if failure:
            raise GpurunError(f"error running {name} hook #{index}: {name_program(hook, failure)}")


def name_program(hook: OciHook, failure: str) -> str:
    """*failure* of *hook* with the program that it is, which a number does not tell."""
    if failure.startswith(hook.path):
        return failure
    how, comma, output = failure.partition(", stdout: ")
    return f"{how} ({clean(hook.path)}){comma}{output}"


def run_hook(
    hook: OciHook,
    state: str,
    env: dict[str, str],
    before_exec: Callable[[], None] | None = None,
    outputs: tuple[int, int] = _COLLECTED,
    execve: Execve = posix.execve,
) -> str:
    """Run one hook to its end, see :func:`run_hooks`; returns "" or what went wrong."""
    stdin_r, stdin_w = posix.pipe2(O_CLOEXEC)
    output_r, output_w = posix.pipe2(O_CLOEXEC)
    exec_r, exec_w = posix.pipe2(O_CLOEXEC)
    pid = posix.fork()
    if pid == 0:
        own = env if hook.env is None else dict([e.split("=", 1) for e in hook.env])
        streams = (stdin_r, *[output_w if fd < 0 else fd for fd in outputs])
        _exec_hook(hook, streams, exec_w, before_exec, own, execve)
    for fd in (stdin_r, output_w, exec_w):
        posix.close(fd)
    deadline = time.monotonic() + hook.timeout if hook.timeout else None
    with Fd(output_r), Fd(exec_r):
        pipes = (stdin_w, output_r, exec_r)
        return HookRun(hook, pid, state.encode("utf-8", "surrogateescape"), pipes, deadline).wait()


def in_directory(path: str) -> Callable[[], None]:
    """A *before_exec* that changes the working directory; one that has gone away, or that a user
    namespace may not enter, leaves the hook in ``/``."""

    def change() -> None:
        try:
            posix.chdir(path)
        except (FileNotFoundError, PermissionError):
            posix.chdir("/")

    return change


def _exec_hook(
    hook: OciHook,
    streams: tuple[int, ...],
    report: int,
    before_exec: Callable[[], None] | None,
    env: dict[str, str],
    execve: Execve,
) -> NoReturn:
    try:
        for number, fd in enumerate(streams):
            posix.dup2(fd, number)
        if before_exec:
            before_exec()
        default_signals()
        if report != 3:
            posix.dup2(report, 3, False)
            report = 3
        close_range(4)
        execve(hook.path, hook.args or (hook.path,), env)
    except OSError as e:
        posix.write(report, strerror_lower(e.errno).encode())
    finally:
        posix._exit(127)


class HookRun:
    """A hook that runs: its stdin is fed, its output drained, and its end waited for, all by one poll(2).

    *pipes* are the write end of its stdin, the read end of its output, and of what says why it could not be executed.
    *deadline* is a time of the monotonic clock in seconds, None for none.
    """

    def __init__(self, hook: OciHook, pid: int, state: bytes, pipes: tuple[int, int, int], deadline: float | None) -> None:
        self._hook, self._pid, self._state, self._deadline = hook, pid, state, deadline
        self._stdin, self._output_fd, self._report = pipes
        self._output = b""
        self._ended = self._timed_out = False
        self._pidfd = posix.pidfd_open(pid, 0)
        posix.set_blocking(self._stdin, False)
        self._poll = select.poll()
        self._poll.register(self._pidfd, select.POLLIN)
        self._poll.register(self._output_fd, select.POLLIN)
        self._poll.register(self._stdin, select.POLLOUT)

    def wait(self) -> str:
        """Serve the hook to its end, or to the end of its time; returns "" or what went wrong.  Raises OSError."""
        try:
            while not self._ended or self._output_fd >= 0:
                wait_ms = None if self._deadline is None else max(0.0, self._deadline - time.monotonic()) * 1000
                events = dict(self._poll.poll(wait_ms))
                if not events and self._ended:
                    break  # someone the hook left behind holds its output: what came is enough
                if not events:
                    self._kill()
                if self._stdin in events:
                    self._feed()
                if self._output_fd in events:
                    self._drain()
                if self._pidfd in events:
                    self._end()
        finally:
            posix.close(self._pidfd)
            if self._stdin >= 0:
                posix.close(self._stdin)
        return self._reap()

    def _kill(self) -> None:
        """Its time is over."""
        self._timed_out, self._deadline = True, None
        posix.kill(self._pid, SIGKILL)

    def _feed(self) -> None:
        try:
            self._state = self._state[posix.write(self._stdin, self._state) :]
        except BrokenPipeError:
            self._state = b""  # a hook need not read its stdin
        except BlockingIOError:
            return  # the pipe is full, poll says when it is not
        if not self._state:
            self._poll.unregister(self._stdin)
            posix.close(self._stdin)
            self._stdin = -1

    def _drain(self) -> None:
        chunk = posix.read(self._output_fd, 65536)
        if not chunk:
            self._poll.unregister(self._output_fd)
            self._output_fd = -1
        elif len(self._output) < _OUTPUT_LIMIT:
            self._output += chunk

    def _end(self) -> None:
        """It has ended; a daemon that it left behind may hold its output open."""
        self._ended = True
        self._poll.unregister(self._pidfd)
        self._deadline = time.monotonic() + _DRAIN_SECONDS

    def _reap(self) -> str:
        status = posix.waitpid(self._pid, 0)[1]
        if self._timed_out:
            return f"hook ran past specified timeout of {float(self._hook.timeout or 0):.1f}s"
        failed = posix.read(self._report, 1000)
        if failed:
            return f"{self._hook.path}: {failed.decode()}"
        if status == 0:
            return ""
        code = posix.waitstatus_to_exitcode(status)
        text = self._output.decode("utf-8", "replace").strip()
        how = f"exit status {code}" if code >= 0 else f"signal: {(_signal.strsignal(-code) or str(-code)).lower()}"
        return f"{how}, stdout: , stderr: {text}"
