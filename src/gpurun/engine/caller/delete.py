"""delete: a container is removed with all that belongs to it; its state goes last, so that it can be deleted once more."""

from __future__ import annotations

import posix
import time

from gpurun import log
from gpurun.engine import state as store
from gpurun.engine.caller.saved_hooks import saved_hooks
from gpurun.engine.signals import SIGKILL, send_signal
from gpurun.errors import ConfigError, ContainerNotFound, GpurunError, Stays, StepError
from gpurun.linux.files import read_file
from gpurun.linux.procfs import is_alive, open_pidfd
from gpurun.paths import clean_path
from gpurun.record import replace

#: How long a killed init may take to end.
_KILL_SECONDS = 10.0


def delete(root: str, container_id: str, force: bool = False, oom_reported: bool = False) -> tuple[str, ...]:
    """Remove a stopped or created container with all that belongs to it; with *force* a running one too.

    Returns warnings: a failing poststop hook is one, and that memory ran out, unless that has been *oom_reported*.

    With *force*, a container that does not exist is fine, and one whose state is damaged or that was half made is removed,
    with what is in the cgroup that the state or the config still names.  A state that cannot be read just now is an error,
    and all stays.  Where something of the container stays, because the file that names it is damaged, the rest is removed,
    and then
    :class:`GpurunError` says what.  Raises :class:`GpurunError`.
    """
    warnings = _delete(root, container_id, force, oom_reported)
    stays = [warning for warning in warnings if isinstance(warning, Stays)]
    if not stays:
        return warnings
    for warning in warnings:
        if warning not in stays:
            log.warning(warning)
    raise GpurunError(f"container {container_id} is removed, but not all of it: {'; '.join(stays)}")


def _delete(root: str, container_id: str, force: bool, oom_reported: bool) -> tuple[str, ...]:
    try:
        state = store.load(root, container_id)
    except ContainerNotFound:
        store.remove_directory(root, container_id)  # a create that was killed before it could write anything
        from gpurun.ns.journal_store import forget_orphan, undo_earlier_boots

        warnings = undo_earlier_boots("", (root, container_id))  # what it had when the machine stopped
        forget_orphan(root, container_id)
        if force:
            return warnings
        raise
    except store.DamagedState as e:
        if not force:
            raise
        return _delete_damaged(root, e.left)
    now = store.status(root, state)
    if now in ("running", "paused") and not force:
        raise GpurunError(f"cannot delete container {container_id} that is not stopped: {now}")
    if now != "stopped":
        _end_init(state, now == "paused")
        oom_reported = True
    return destroy(root, state, force, oom_reported)


def _delete_damaged(root: str, left: store.State) -> tuple[str, ...]:
    """Remove a container of which no more is known than *left*."""
    warnings: tuple[str, ...] = ()
    if not _is_cgroup(left.cgroup):
        from gpurun.engine.caller.damaged import cgroup_of_config

        cgroup, unit = cgroup_of_config(root, left.id)
        left = replace(left, cgroup=cgroup, unit=unit)
    if not left.cgroup:
        text = "its state is damaged and names no cgroup, nor does its config: its processes, if there are any, go on"
        warnings = (Stays(text),)
    _end_init(left, False)
    return warnings + destroy(root, left, force=True)


def _is_cgroup(path: str) -> bool:
    """Whether *path* can be that of a container's cgroup, which is there, below the root, or gone by now."""
    if path in ("", "/") or path != clean_path(path):
        return False
    try:
        posix.stat(path)
    except FileNotFoundError:
        return True
    try:
        posix.stat(f"{path}/cgroup.type")  # the root of the tree has none
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def delete_own(root: str, state: store.State, oom_reported: bool = False) -> tuple[str, ...]:
    """Remove the container *state* that this process itself has made, as ``delete --force`` does; returns warnings.

    Who has made it need not read what it is.  If it has been deleted meanwhile nothing is done, also where another one
    has its id by now.
    """
    try:
        found = store.load(root, state.id)
    except ContainerNotFound:
        return ()
    except (StepError, store.DamagedState):
        found = state
    if (found.pid, found.start_time) != (state.pid, state.start_time):
        return ()
    if is_alive(state.pid, state.start_time):
        _end_init(state, True)
        oom_reported = True
    return destroy(root, state, force=True, oom_reported=oom_reported)


def _ran_out_of_memory(cgroup: str) -> bool:
    """Whether the kernel has killed in the cgroup for want of memory; not so without a memory controller, or a cgroup."""
    try:
        return b"\noom_kill 0\n" not in read_file(f"{cgroup}/memory.events", 4096)
    except OSError:
        return False


def _how_memory_ended(state: store.State) -> tuple[str, ...]:
    """A sentence, if memory ran out in the container: delete is the last that can say so, and most often the only one."""
    from gpurun.cgroup.oom import describe_oom
    from gpurun.engine.caller.oom import how_memory_ended

    text = describe_oom(how_memory_ended(state))
    return (text,) if text else ()


def _end_init(state: store.State, paused: bool) -> None:
    pidfd = open_pidfd(state.pid, state.start_time)
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


def destroy(root: str, state: store.State, force: bool = False, oom_reported: bool = True) -> tuple[str, ...]:
    """Remove what is left of a container whose init has ended: its processes, cgroup, traces in the rootfs, state; then the
    poststop hooks run, whose failure is a warning (runtime.md "Lifecycle", step 13).

    With *force*, hooks that a damaged config does not name any more are not run.  That memory ran out is a warning as well,
    unless that has been *oom_reported*.
    """
    ran_out = _ran_out_of_memory(state.cgroup)
    warnings = () if oom_reported or not (ran_out or state.unit) else _how_memory_ended(state)
    try:
        saved = saved_hooks(root, state.id)
    except ConfigError as e:
        if not force:
            raise
        saved = None
        warnings += (Stays(f"its saved config.json is damaged, no poststop hooks run, and what they take back stays: {e}"),)
    warnings += _release_gpu_memory(f"{root}/{state.id}")
    _remove_cgroup(state, ran_out)
    warnings += _undo_traces(root, state.id, force, bool(state.created))
    _unmount_root(f"{root}/{state.id}/mounted")
    _give_cpus_back(f"{root}/{state.id}/exclusive")
    _remove_rdt(f"{root}/{state.id}/resctrl")
    warnings += _leave_network(root, state.id)
    store.remove_directory(root, state.id)
    if saved is None or not saved[0].poststop or not state.bundle:  # of a damaged state, whose hooks could not get the state
        return warnings
    from gpurun.engine.host_hooks import run_poststop

    return warnings + run_poststop(saved[0].poststop, store.state_json(state, "stopped"), state.bundle, saved[1])


def _undo_traces(root: str, container_id: str, force: bool, whole: bool) -> tuple[str, ...]:
    for name in ("created", "undone"):
        try:
            posix.lstat(f"{root}/{container_id}/{name}")
        except FileNotFoundError:
            continue
        from gpurun.ns.journal_store import undo_traces

        return undo_traces(root, container_id, force, whole)
    return ()  # no devices have made anything in the rootfs


def _unmount_root(record: str) -> None:
    try:
        posix.stat(record)
    except FileNotFoundError:
        return  # the mounts have gone with the mount namespace
    from gpurun.ns.own_root import unmount_root

    unmount_root(record)


def _release_gpu_memory(directory: str) -> tuple[str, ...]:
    try:
        posix.stat(f"{directory}/gpu-memory")
    except FileNotFoundError:
        return ()  # no cgroup above keeps memory of a GPU for it
    from gpurun.engine.gpus.memory_limits import take_away

    return take_away(directory)


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
    from gpurun.engine.caller.resctrl import remove_rdt

    remove_rdt(record)


def _leave_network(root: str, container_id: str) -> tuple[str, ...]:
    """Take back the network that `run --network` has given to the container; warnings."""
    try:
        posix.stat(f"{root}/{container_id}/network")
    except FileNotFoundError:
        return ()
    from gpurun.network.attach import detach

    return detach(root, container_id)


def _remove_cgroup(state: store.State, ran_out: bool) -> None:
    """Most often one rmdir does it; else processes are left (shared pid namespace), or cgroups the container made.

    Where memory *ran_out*, whoever called us may still have to read that in it, and to tell it.
    """
    if ran_out:
        from gpurun.cgroup.control import kill as kill_processes
        from gpurun.cgroup.oom_watch import let_watchers_tell

        kill_processes(state.cgroup)
        let_watchers_tell(state.cgroup)
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
        manager.remove(state.cgroup, end=True)


def _remove_scope(state: store.State) -> None:
    from gpurun.cgroup import manager, systemd

    if manager.processes(state.cgroup):
        manager.kill(state.cgroup)  # systemd would ask them nicely first, for a minute and a half
    systemd.stop_unit(state.unit, state.cgroup, state.manager)
    manager.remove(state.cgroup, end=True)
