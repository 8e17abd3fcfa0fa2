"""start, kill, delete, run: what happens to a container after it was created."""

from __future__ import annotations

import posix
import time
from errno import ENOENT, ENXIO

from gpurun.engine import state as store
from gpurun.engine.signals import SIGCHLD, SIGKILL, SIGURG, SIGWINCH, block_signals, exit_code, send_signal, wait_signal
from gpurun.errors import ContainerNotFound, GpurunError, NotRunning, StepError
from gpurun.linux.files import O_CLOEXEC, read_file
from gpurun.linux.proc import is_alive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.oci.config import Hooks, OciHook

#: How long a killed init may take to end.
_KILL_SECONDS = 10.0


def start(root: str, container_id: str) -> tuple[str, ...]:
    """Release the init of a created container; its process runs when this returns (but execve may still fail).

    Returns warnings: a failing poststart hook is one, as the process runs already (runtime.md "Lifecycle").

    Whoever removes the FIFO is the one who starts the container, so of two starts at once one is refused.
    """
    state = store.load(root, container_id)
    now = store.status(root, state)
    if now == "stopped":
        raise GpurunError("cannot start a container that has stopped")
    if now == "paused":
        raise GpurunError("cannot start a container in the paused state")
    if now != "created":
        raise GpurunError("cannot start an already running container")
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
    hooks = _saved_hooks(root, container_id)
    if hooks is None or not hooks.poststart:
        return ()
    return _run_late_hooks("poststart", hooks.poststart, store.state_json(state, "running"), state.bundle)


def _start_notifying(directory: str, unit: str, state: store.State, fifo_fd: int) -> None:
    """Release the process and wait until it is ready, for systemd's sake (sd_notify(3)); *directory* may not be there."""
    from gpurun.engine.notify import bind_socket, forward

    try:
        inside = bind_socket(directory)
    except StepError as e:
        if e.errno != ENOENT:
            raise
        posix.write(fifo_fd, b"0")  # create was not told of a unit
        return
    posix.write(fifo_fd, b"0")
    forward(inside, unit, state)


def _run_late_hooks(name: str, hooks: tuple[OciHook, ...], state: str, bundle: str) -> tuple[str, ...]:
    """Run all of *hooks*, whatever becomes of each; returns what went wrong, as warnings."""
    from gpurun.engine.hooks import in_directory, run_hook

    warnings = []
    for index, hook in enumerate(hooks):
        failure = run_hook(hook, state, in_directory(bundle))
        if failure:
            warnings.append(f"error running {name} hook #{index}: {failure}")
    return tuple(warnings)


def _saved_hooks(root: str, container_id: str) -> Hooks | None:
    """The hooks of the saved config, if it names any at all: most containers have none, and then no JSON is read."""
    try:
        data = read_file(f"{root}/{container_id}/config.json", 64 << 20)
    except FileNotFoundError:
        return None  # a create that did not get that far
    if b'"hooks"' not in data or (b'"poststart"' not in data and b'"poststop"' not in data):
        return None
    from gpurun.oci.config import read_config

    return read_config(data).hooks


def kill(root: str, container_id: str, signal: int, all_processes: bool = False) -> None:
    """Send *signal* to the init; SIGKILL to a container without a pid namespace of its own reaches all its processes."""
    state = store.load(root, container_id)
    shared = signal == SIGKILL and not state.private_pid
    if shared or (all_processes and signal == SIGKILL):
        from gpurun.cgroup import manager

        if manager.processes(state.cgroup):
            manager.kill(state.cgroup)
            return
    pidfd = open_init(state)
    if pidfd is None:
        if all_processes:
            return  # what --all is asked to make sure is already so
        raise NotRunning
    try:
        send_signal(pidfd, signal)
    except ProcessLookupError:
        raise NotRunning from None
    finally:
        posix.close(pidfd)


def open_init(state: store.State) -> int | None:
    """A pidfd of the container's init, or None when it has ended; looked at again after opening: pids are reused."""
    if state.pid == 0:
        return None
    try:
        pidfd = posix.pidfd_open(state.pid, 0)
    except ProcessLookupError:
        return None
    if not is_alive(state.pid, state.start_time):
        posix.close(pidfd)
        return None
    return pidfd


def delete(root: str, container_id: str, force: bool = False, told: bool = False) -> tuple[str, ...]:
    """Remove a stopped or created container with all that belongs to it; with *force* a running one too.

    Returns warnings: a failing poststop hook is one, and that memory ran out, unless that has been *told*.

    With *force*, a container that does not exist is fine, and one whose state is damaged or that was half made is removed.
    """
    try:
        state = store.load(root, container_id)
    except ContainerNotFound:
        store.remove_directory(root, container_id)  # a create that was killed before it could write anything
        if force:
            return ()
        raise
    except GpurunError:
        if not force:
            raise
        warnings = _undo_traces(root, container_id)
        store.remove_directory(root, container_id)
        return warnings
    now = store.status(root, state)
    if now in ("running", "paused") and not force:
        raise GpurunError(f"cannot delete container {container_id} that is not stopped: {now}")
    if now != "stopped":
        _end_init(state, now == "paused")
    elif not told:
        return _how_memory_ended(state) + destroy(root, state)
    return destroy(root, state)


def _how_memory_ended(state: store.State) -> tuple[str, ...]:
    """A sentence, if memory ran out in the container: delete is the last that can say so, and most often the only one."""
    if not state.unit:
        try:
            if b"\noom_kill 0\n" in read_file(f"{state.cgroup}/memory.events", 4096):
                return ()
        except OSError:
            return ()  # no memory controller, or no cgroup (any more)
    from gpurun.cgroup.oom import describe_oom
    from gpurun.engine.oom import how_memory_ended

    text = describe_oom(how_memory_ended(state))
    return (text,) if text else ()


def _end_init(state: store.State, paused: bool) -> None:
    pidfd = open_init(state)
    if pidfd is not None:
        try:
            send_signal(pidfd, SIGKILL)
        except ProcessLookupError:
            pass  # it ended by itself just now
        posix.close(pidfd)
    if paused:
        from gpurun.cgroup import manager

        manager.thaw(state.cgroup)
    deadline = time.monotonic() + _KILL_SECONDS
    while state.pid and is_alive(state.pid, state.start_time):
        if time.monotonic() > deadline:
            raise GpurunError("container init still running")
        time.sleep(0.001)


def destroy(root: str, state: store.State) -> tuple[str, ...]:
    """Remove what is left of a container whose init has ended: its processes, cgroup, traces in the rootfs, state; then the
    poststop hooks run, whose failure is a warning (runtime.md "Lifecycle", step 13)."""
    hooks = _saved_hooks(root, state.id)
    _remove_cgroup(state)
    warnings = _undo_traces(root, state.id)
    _give_cpus_back(f"{root}/{state.id}/exclusive")
    _remove_rdt(f"{root}/{state.id}/resctrl")
    store.remove_directory(root, state.id)
    if hooks is None or not hooks.poststop:
        return warnings
    return warnings + _run_late_hooks("poststop", hooks.poststop, store.state_json(state, "stopped"), state.bundle)


def _undo_traces(root: str, container_id: str) -> tuple[str, ...]:
    try:
        posix.stat(f"{root}/{container_id}/created")
    except FileNotFoundError:
        return ()  # no devices have made anything in the rootfs
    from gpurun.ns.traces import undo_traces

    return undo_traces(root, container_id)


def _give_cpus_back(record: str) -> None:
    try:
        posix.stat(record)
    except FileNotFoundError:
        return  # no container without CPUs of its own has one
    from gpurun.cgroup.exclusive import give_back

    give_back(record)


def _remove_rdt(record: str) -> None:
    try:
        posix.stat(record)
    except FileNotFoundError:
        return  # no container without linux.intelRdt has one
    from gpurun.engine.rdt import remove_rdt

    remove_rdt(record)


def _remove_cgroup(state: store.State) -> None:
    """Most often one rmdir does it; else processes are left (shared pid namespace), or cgroups the container made."""
    if state.unit:
        _remove_scope(state)
        return
    try:
        posix.rmdir(state.cgroup)
    except FileNotFoundError:
        return
    except OSError:
        from gpurun.cgroup import manager

        if not state.private_pid or manager.processes(state.cgroup):
            manager.kill(state.cgroup)
        manager.remove(state.cgroup)


def _remove_scope(state: store.State) -> None:
    from gpurun.cgroup import manager, systemd

    if manager.processes(state.cgroup):
        manager.kill(state.cgroup)  # systemd would ask them nicely first, for a minute and a half
    systemd.stop_unit(state.unit, state.cgroup, state.manager)
    manager.remove(state.cgroup)


def wait_foreground(pid: int, pidfd: int, master: int = -1) -> int:
    """Wait for the foreground process *pid*, passing on every signal we get; returns the exit code for ``run``.

    With the *master* of its terminal, our own terminal is connected to it for as long.
    """
    if master >= 0:
        from gpurun.engine.terminal import serve_foreground

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
