"""exec: another process in a container that is there.  The caller's side; the process' own is exec_init.py.

The child interpreter is started before this module is even read, and reads its modules while we read ours and plan; it does
nothing until the plan is there, so whatever is wrong with the request still touches nothing of the container.
"""

from __future__ import annotations

import posix
from errno import EINVAL, ENODEV, ENOENT, ENOSYS, EPERM

from gpurun import log
from gpurun.cgroup import control
from gpurun.engine import messages
from gpurun.engine import state as store
from gpurun.engine.caller.lifecycle import wait_foreground
from gpurun.engine.caller.start_init import dismiss, kill_child
from gpurun.engine.signals import block_signals
from gpurun.errors import ConfigError, GpurunError, Step, StepError
from gpurun.linux import process as lp
from gpurun.linux.files import Fd, read_file
from gpurun.linux.fs import (
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)
from gpurun.linux.mount import MOUNT_ATTR_RDONLY
from gpurun.linux.procfs import cgroups, open_pidfd
from gpurun.ns.mount import import_stand_ins, private_copy
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import replace, to_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.engine.caller.start_init import Started
    from gpurun.engine.plan.exec import ExecOptions, SavedConfig
    from gpurun.engine.plan.records import ExecPlan


def read_process_file(data: bytes, path: str) -> dict[str, Any]:
    """The process object in the file *path* with the text *data*; its members are not looked at yet.

    Raises :class:`ConfigError` for what is not an object.
    """
    value = parse_json(data, path)
    if value is None:
        raise ConfigError(path, "process property must not be empty")
    return as_object(value, path)


def exec_process(options: ExecOptions, started: Started) -> int:
    """Run the process of *options* through the child *started*; returns 0 when detached, else its exit code.

    Raises :class:`GpurunError`; then the process has not run, and nothing of it is left.
    """
    made: list[int] = []  # what there is of processes in the container; in the end the one that was asked for
    try:
        warnings, pidfd, master = _start(options, started, made)
    except BaseException:
        for pid in made:
            kill_child(pid)
        dismiss(started)
        raise
    for warning in warnings:
        log.warning(warning)
    posix.close(started.channel)
    return 0 if options.detach else wait_foreground(made[-1], pidfd, master)


def _start(options: ExecOptions, started: Started, made: list[int]) -> tuple[tuple[str, ...], int, int]:
    """Have the process made, and let it go; returns the plan's warnings, its pidfd, and the master of its terminal or -1."""
    state = store.load(options.root, options.id)
    if store.is_changing(options.root, options.id):
        from gpurun.engine.gpus.attach_steps import settle

        settle(options.root, options.id)  # or the process would be told of GPUs that are not there
    now = store.status(options.root, state)
    if now == "stopped":
        raise GpurunError("cannot exec in a stopped container")
    if now == "paused" and not options.ignore_paused:
        raise GpurunError("cannot exec in a paused container (use --ignore-paused to override)")
    if now == "creating":
        raise GpurunError("cannot exec in a container that is still being created")
    if options.terminal or options.console_socket:
        from gpurun.engine.terminal import check_console

        check_console(options.terminal, options.detach, options.console_socket)
    init = open_pidfd(state.pid, state.start_time)
    if init is None:
        raise GpurunError("cannot exec in a stopped container")
    if state.manager:
        from gpurun.cgroup.systemd import enter

        enter(state.manager, started.pid)  # else nothing that it makes could be in the container's cgroup
    cgroups = dict(zip(("cgroup", "other_cgroup"), open_cgroups(state, options.cgroup), strict=True))
    ours, its = _console(options)
    files = {"init": init, **{name: _without_way_up(fd) for name, fd in cgroups.items()}, "console": its}
    files = {name: fd for name, fd in files.items() if fd >= 0}
    try:
        plan, warnings = _plan(options, state)
        plan = replace(plan, root=_root_of(state))
        pid = _serve(plan, started, files, cgroups, state, options.root, made)
    finally:
        for fd in {*files.values(), *cgroups.values()}:
            if fd >= 0:
                posix.close(fd)
    log.debug(f"the process is {pid}, in the container's namespaces")
    pidfd = lp.pidfd_open(pid)
    master = _hand_over(options, ours, pid, pidfd)
    if not options.detach:
        block_signals()  # from now on they are the process's
    messages.send(started.channel, "go")
    return warnings, pidfd, master


def _root_of(state: store.State) -> tuple[int, int] | None:
    """(device, inode) of the root directory of the container's init, to which exec is to come; None where the init has gone
    to another one by itself, or may not be looked at."""
    try:
        rootfs, found = posix.stat(state.rootfs), posix.stat(f"/proc/{state.pid}/root/")
    except OSError:
        return None
    root = (found.st_dev, found.st_ino)
    return root if root == (rootfs.st_dev, rootfs.st_ino) else None


def open_cgroups(state: store.State, sub: str) -> tuple[int, int]:
    """Descriptors of the cgroup that the process is to be born in, and of the one to take when that cannot be (-1: none).

    *sub*, a path below the container's cgroup, is the caller's own choice: then there is no other.  A container that has
    none (--cgroup-manager disabled, or a caller that may make none) leaves its processes in the caller's.  Returns (cgroup
    to be born in, other cgroup).  Raises :class:`StepError` when none can be opened.
    """
    if not state.cgroup and not sub:
        return -1, -1
    try:
        cgroup = posix.open(state.cgroup, control.DIRECTORY)
    except OSError as e:
        if sub or e.errno not in (ENOENT, ENODEV):
            raise StepError("open the cgroup", state.cgroup, e.errno) from None
        cgroup = -1  # removed by the container, which has a tree of its own
    if sub:
        return _open_sub_cgroup(cgroup, sub), -1
    own = _cgroup_of(state.pid)
    if cgroup >= 0 and (not own or state.cgroup.endswith(own)):
        return cgroup, -1
    if not own:
        raise StepError("open the cgroup", state.cgroup, ENOENT)
    from gpurun.cgroup.tree import find_tree, join_root

    try:
        return cgroup, posix.open(join_root(find_tree().root, own), control.DIRECTORY)
    except OSError:
        if cgroup < 0:
            raise StepError("open the cgroup", state.cgroup, ENOENT) from None
        return cgroup, -1


def _without_way_up(cgroup: int) -> int:
    """The open *cgroup* as a read-only mount of its own: the new process is born with it, and who in the container may look
    into that process finds no ``..`` to the host's tree, and no file to write to, which /sys/fs/cgroup does not give either.
    To be born there needs no more.  Where we may make no mounts it stays as it is."""
    if cgroup < 0:
        return cgroup
    import_stand_ins()
    try:
        return private_copy(cgroup, "", MOUNT_ATTR_RDONLY, recursive=False)
    except OSError as e:
        if e.errno not in (EPERM, ENOSYS, EINVAL):  # EINVAL: of a mount that is unbindable
            raise StepError("copy the mount of the cgroup", "", e.errno) from None
        return cgroup


def _open_sub_cgroup(cgroup: int, sub: str) -> int:
    """The cgroup *sub* below the one that is open; the container may have written there, so no link leads anywhere."""
    path = sub.strip("/") or "."
    if ".." in path.split("/"):
        raise GpurunError(f"bad sub cgroup path: {sub}")
    resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
    with Fd(cgroup), Step("open the sub cgroup", sub):
        return openat2(cgroup, path, control.DIRECTORY, resolve)


def _cgroup_of(pid: int) -> str:
    """The cgroup of *pid*, absolute in our tree; empty when it is outside of what we see."""
    try:
        path = next((path for controllers, path in cgroups(pid) if not controllers), "")
    except OSError:
        return ""  # it has ended; joining its namespaces will say so
    return "" if path.startswith("/..") or path == "/" else path


def _console(options: ExecOptions) -> tuple[int, int]:
    """(our end, the process' end) of the way that its terminal's master would take; -1 where there is none."""
    if not options.terminal:
        return -1, -1
    from gpurun.engine.terminal import connect_socket, console_pair

    return (-1, connect_socket(options.console_socket)) if options.console_socket else console_pair()


def _plan(options: ExecOptions, state: store.State) -> tuple[ExecPlan, tuple[str, ...]]:
    from gpurun.engine.plan.exec import ExecHost, plan_exec

    config = _saved_config(options.root, options.id)
    if config.namespaces & lp.CLONE_NEWUSER and _same_user_namespace(state.pid):
        config = replace(config, namespaces=config.namespaces & ~lp.CLONE_NEWUSER)  # setns(2) refuses to enter it again
    last_cap = int(read_file("/proc/sys/kernel/cap_last_cap", 16))
    apparmor = selinux = False
    given = options.process or {}
    asked = (options.apparmor_profile, options.selinux_label, given.get("apparmorProfile"), given.get("selinuxLabel"))
    if any(asked) or config.process.apparmor_profile or config.process.selinux_label:
        from gpurun.security.lsm import apparmor_enabled, selinux_enabled

        apparmor, selinux = apparmor_enabled(), selinux_enabled()
    host = ExecHost(last_cap, apparmor, selinux)
    edits = store.load_edits(options.root, options.id)
    seccomp = None
    if config.linux.seccomp is not None:
        seccomp = store.load_seccomp(options.root, options.id)
        if seccomp is None:
            raise GpurunError(f"{options.root}/{options.id}/seccomp is missing: the container's filter is not known")
    return plan_exec(options, config, edits, host, state.rootfs, state.session_keyring, seccomp)


def _saved_config(root: str, container_id: str) -> SavedConfig:
    from gpurun.engine.plan.exec import read_saved_config

    path = f"{root}/{container_id}/config.json"
    return read_saved_config(read_file(path, store.MAX_SAVED_CONFIG), path)


def _same_user_namespace(pid: int) -> bool:
    ours, its = posix.stat("/proc/self/ns/user"), posix.stat(f"/proc/{pid}/ns/user")
    return (ours.st_dev, ours.st_ino) == (its.st_dev, its.st_ino)


def _serve(
    plan: ExecPlan,
    started: Started,
    files: dict[str, int],
    cgroups: dict[str, int],
    state: store.State,
    root: str,
    made: list[int],
) -> int:
    """Send the plan with the *files* by their names and answer until the process is ready to execve(2); returns its pid.

    *cgroups* are those among the files, as they can be written to.  *made* gets what the caller is to end and to reap.
    """
    kills = control.oom_kill_count(state.cgroup)
    try:
        messages.send_files(started.channel, tuple(files.values()), "plan", to_wire(plan), tuple(files))
    except BrokenPipeError:
        messages.hang_up(started.channel)  # it has ended; its last message, if any, says why
    speaker = started.pid  # then the setter, then the process: see exec_init.py
    setter = 0
    ready = False  # the setter has its limits
    while True:
        said = messages.receive_report(started.channel, (speaker,))
        if said is None:
            oom = " (possibly OOM-killed)" if control.oom_kill_count(state.cgroup) > kills else ""
            raise GpurunError(f"unable to start container process: it ended before it could start{oom}")
        if said.word == "failed":
            raise GpurunError(f"unable to start container process: {said.text}")
        if said.word == "move" and speaker == started.pid:  # it could not be born where it belongs
            from gpurun.cgroup.manager import add_process

            moved, dead, index = said.numbers
            made.append(messages.check_child(moved))
            if dead:  # else none was born where it belongs (gpurun.ns.birth)
                posix.waitpid(messages.check_child(dead), 0)
            add_process(cgroups[list(files)[index]], moved, state.cgroup)
        elif said.word == "child" and speaker == started.pid:
            setter = speaker = messages.check_child(said.numbers[0])
            made.append(setter)
        elif said.word == "child" and speaker == setter and ready:
            speaker = messages.check_child(said.numbers[0])
            made.append(speaker)
            for pid in (started.pid, setter):  # both have done their part
                posix.waitpid(pid, 0)
            made.remove(setter)
            _schedule(plan, speaker)
        elif said.word == "ready" and speaker == setter and not ready:
            ready = True
            _prepare(plan, state, setter)
        elif said.word == "created" and speaker not in (started.pid, setter):
            if said.numbers:
                _send_listener(state, root, speaker, said.numbers[0])
            return speaker
        else:
            raise GpurunError(f'unable to start container process: "{said.word}" must not come from process {said.sender}')
        messages.send(started.channel, "go")


def _send_listener(state: store.State, root: str, pid: int, listener: int) -> None:
    """The filter's agent is told of each process: give it the listener, which is a descriptor of the process."""
    from gpurun.engine.caller.seccomp import send_listener
    from gpurun.oci.seccomp import read_seccomp
    from gpurun.security.seccomp import plan_seccomp

    seccomp = _saved_config(root, state.id).linux.seccomp or {}
    plan = plan_seccomp(read_seccomp(seccomp, "linux.seccomp"), posix.uname().machine)
    if plan is not None:
        send_listener(plan, pid, listener, store.state_json(state, "running"))


def _prepare(plan: ExecPlan, state: store.State, pid: int) -> None:
    """What only we may do for the setter *pid*: the limits that the process is to be born with, and streams that a user
    namespace's user can open."""
    if plan.namespaces & lp.CLONE_NEWUSER:
        from gpurun.engine.caller.streams import give_streams

        give_streams(read_file(f"/proc/{state.pid}/uid_map").decode(), plan.process.uid)
    for resource, soft, hard in plan.process.rlimits:
        if resource == lp.RLIMIT_NPROC:  # the setter needs a process more; the process takes what is too much off itself
            now = lp.get_limit(pid, resource)
            soft, hard = max(soft, now[0]), max(hard, now[1])
        lp.set_limit(pid, resource, soft, hard)


def _schedule(plan: ExecPlan, pid: int) -> None:
    """Give the process *pid* the scheduler that it has not been born with."""
    scheduler = plan.process.knobs.scheduler if plan.process.knobs is not None else None
    if scheduler is not None:
        from gpurun.engine.scheduler import apply_scheduler, lost_by_fork

        if lost_by_fork(scheduler):
            apply_scheduler(scheduler, pid)


def _hand_over(options: ExecOptions, ours: int, pid: int, pidfd: int) -> int:
    """Give the caller what it asked for of the process that is about to run; returns the terminal's master or -1."""
    master = -1
    if ours >= 0:
        from gpurun.engine.terminal import receive_master

        master = receive_master(ours)
    if options.pidfd_socket:
        from gpurun.engine.terminal import send_pidfd

        send_pidfd(options.pidfd_socket, pidfd, b"setns")
    if options.pid_file:
        store.write_pid_file(options.pid_file, pid)
    return master
