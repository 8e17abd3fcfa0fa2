"""start and kill, and what run waits for: what happens to a container after it was created."""

from __future__ import annotations

import posix
from errno import ENOENT, ENXIO

from gpurun import log
from gpurun.engine import state as store
from gpurun.engine.caller.saved_hooks import saved_hooks
from gpurun.engine.signals import SIGCHLD, SIGKILL, SIGURG, SIGWINCH, block_signals, exit_code, send_signal, wait_signal
from gpurun.errors import GpurunError, SignalTooLate, StepError, oserror_text
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.procfs import open_pidfd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.oci.config import OciHook


def start(root: str, container_id: str) -> None:
    """Release the init of a created container; its process runs when this returns (but execve may still fail).

    A poststart hook that fails is an error: the container is ended and deleted (runtime.md "Lifecycle", steps 9 and 12).

    Whoever removes the FIFO is the one who starts the container, so of two starts at once one is refused.  Raises
    :class:`GpurunError` for a container that is not in the state ``created``.
    """
    state = store.load(root, container_id)
    now = store.status(root, state)
    if now == "stopped":
        raise GpurunError("cannot start a container that has stopped")
    if now == "paused":
        raise GpurunError("cannot start a container in the paused state")
    if now == "creating":
        raise GpurunError("cannot start a container that is still being created")
    if now != "created":
        raise GpurunError("cannot start an already running container")
    saved = saved_hooks(root, container_id)  # what is wrong with them is reported while nothing runs
    fifo = store.fifo_path(root, container_id)
    try:
        fd = posix.open(fifo, posix.O_WRONLY | posix.O_NONBLOCK | O_CLOEXEC)
        posix.unlink(fifo)
    except FileNotFoundError:
        raise GpurunError("cannot start an already running container") from None
    except OSError as e:
        if e.errno == ENXIO:  # no init has it open
            raise GpurunError("cannot start a container that has stopped") from None
        raise StepError("open", fifo, e.errno) from None
    unit = posix.environ.get(b"NOTIFY_SOCKET", b"").decode("utf-8", "surrogateescape")
    if unit:
        _start_notifying(f"{root}/{container_id}/notify", unit, state, fd)
    else:
        posix.write(fd, b"0")
    posix.close(fd)
    if saved is not None and saved[0].poststart:
        _run_poststart(root, state, saved[0].poststart, saved[1])


def _run_poststart(root: str, state: store.State, hooks: tuple[OciHook, ...], files: tuple[str, str]) -> None:
    """Run *hooks* up to the first that fails; that error is raised once the container has been taken away."""
    from gpurun.engine.host_hooks import run_host_hooks

    try:
        run_host_hooks("poststart", hooks, store.state_json(state, "running"), state.bundle, files)
    except (GpurunError, OSError):
        from gpurun.engine.caller.delete import delete_own

        try:
            warnings = delete_own(root, state)
        except (GpurunError, OSError) as e:  # the hook's error is the one to report; what is left, delete can remove
            warnings = (f"cannot delete the container: {oserror_text(e) if isinstance(e, OSError) else e}",)
        log.warnings(warnings)
        raise


def _start_notifying(directory: str, unit: str, state: store.State, fifo_fd: int) -> None:
    """Release the process and wait until it is ready, for systemd's sake (sd_notify(3)); *directory* need not exist."""
    from gpurun.engine.caller.notify import bind_socket, forward

    try:
        inside = bind_socket(directory)
    except StepError as e:
        if e.errno != ENOENT:
            raise
        posix.write(fifo_fd, b"0")  # create had no unit to notify
        return
    posix.write(fifo_fd, b"0")
    forward(inside, unit, state)


def kill(root: str, container_id: str, signal: int, all_processes: bool = False) -> None:
    """Send *signal* to the init; SIGKILL to a container without a pid namespace of its own reaches all its processes.

    Raises :class:`SignalTooLate` for a container that has ended.
    """
    state = store.load(root, container_id)
    shared = signal == SIGKILL and not state.private_pid
    if shared or (all_processes and signal == SIGKILL):
        from gpurun.cgroup import manager

        if manager.processes(state.cgroup):
            manager.kill(state.cgroup)
            return
    pidfd = open_pidfd(state.pid, state.start_time)
    if pidfd is None:
        if all_processes:
            return  # what --all is asked to make sure is already so
        raise SignalTooLate
    with Fd(pidfd):
        try:
            send_signal(pidfd, signal)
        except ProcessLookupError:  # it has ended since it was opened
            if not all_processes:
                raise SignalTooLate from None


def wait_foreground(pid: int, pidfd: int, master: int = -1) -> int:
    """Wait for the foreground process *pid*, passing on every signal we get; returns the exit code for ``run``.

    With the *master* of its terminal, our own terminal is connected to it for as long.
    """
    if master >= 0:
        from gpurun.engine.foreground import serve_foreground

        return serve_foreground(pid, pidfd, master)
    blocked = block_signals()
    number = SIGCHLD  # it may have ended before SIGCHLD was blocked
    while True:
        if number == SIGCHLD:
            code = exit_code(pid)
            if code is not None:
                return code
        elif number not in (SIGWINCH, SIGURG):  # the one is for terminals, the other has no meaning here
            try:
                send_signal(pidfd, number)
            except ProcessLookupError:
                pass  # it has ended: SIGCHLD is on its way
        number = wait_signal(blocked)
