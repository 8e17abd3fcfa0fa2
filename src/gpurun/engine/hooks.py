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
from gpurun.errors import GpurunError, shown, strerror_lower
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
#: Descriptors for the hooks' stdout and stderr; -1: what they write there is told if they fail.
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
            raise GpurunError(f"error running {name} hook #{index}: {named(hook, failure)}")


def named(hook: OciHook, failure: str) -> str:
    """*failure* of *hook* with the program that it is, which a number does not tell."""
    if failure.startswith(hook.path):
        return failure
    how, comma, output = failure.partition(", stdout: ")
    return f"{how} ({shown(hook.path)}){comma}{output}"


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
        return _watch(hook, pid, state.encode("utf-8", "surrogateescape"), (stdin_w, output_r, exec_r), deadline)


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


def _watch(hook: OciHook, pid: int, state: bytes, pipes: tuple[int, int, int], deadline: float | None) -> str:
    """Feed and drain the hook until it ends or its time is over."""
    stdin_w, output_r, exec_r = pipes
    pidfd = posix.pidfd_open(pid, 0)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(output_r, select.POLLIN)
    poll.register(stdin_w, select.POLLOUT)
    posix.set_blocking(stdin_w, False)
    output = b""
    ended = timed_out = False
    stdin_open = output_open = True
    try:
        while not ended or output_open:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            events = dict(poll.poll(None if wait is None else wait * 1000))
            if not events:
                if ended:
                    break  # someone the hook left behind holds its output: what came is enough
                timed_out = True
                posix.kill(pid, SIGKILL)
                deadline = None
                continue
            if stdin_w in events and stdin_open:
                try:
                    state = state[posix.write(stdin_w, state) :]
                except BrokenPipeError:
                    state = b""  # a hook need not read its stdin
                except BlockingIOError:
                    pass  # the pipe is full, poll says when it is not
                if not state:
                    poll.unregister(stdin_w)
                    posix.close(stdin_w)
                    stdin_open = False
            if output_r in events and output_open:
                chunk = posix.read(output_r, 65536)
                if not chunk:
                    poll.unregister(output_r)
                    output_open = False
                elif len(output) < _OUTPUT_LIMIT:
                    output += chunk
            if pidfd in events and not ended:
                ended = True
                poll.unregister(pidfd)
                deadline = time.monotonic() + _DRAIN_SECONDS
    finally:
        posix.close(pidfd)
        if stdin_open:
            posix.close(stdin_w)
    status = posix.waitpid(pid, 0)[1]
    if timed_out:
        return f"hook ran past specified timeout of {float(hook.timeout or 0):.1f}s"
    failed = posix.read(exec_r, 1000)
    if failed:
        return f"{hook.path}: {failed.decode()}"
    if status == 0:
        return ""
    code = posix.waitstatus_to_exitcode(status)
    text = output.decode("utf-8", "replace").strip()
    how = f"exit status {code}" if code >= 0 else f"signal: {(_signal.strsignal(-code) or str(-code)).lower()}"
    return f"{how}, stdout: , stderr: {text}"
