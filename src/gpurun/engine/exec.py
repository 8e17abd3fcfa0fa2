"""exec: another process in a container that is there.  The caller's side; the process' own is setns_init.py.

The child interpreter is started before this module is even read, and reads its modules while we read ours and plan; it does
nothing until the plan is there, so whatever is wrong with the request still touches nothing of the container.
"""

from __future__ import annotations

import posix

from gpurun import log
from gpurun.cgroup import control
from gpurun.engine import state as store
from gpurun.engine import sync
from gpurun.engine.child import dismiss, kill_child
from gpurun.engine.lifecycle import open_init, wait_foreground
from gpurun.errors import ConfigError, GpurunError, StepError
from gpurun.linux import mount as lm
from gpurun.linux import process as lp
from gpurun.linux.files import read_file
from gpurun.linux.fs import RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import Record, replace, to_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.engine.child import Started
    from gpurun.engine.exec_plan import SavedConfig
    from gpurun.engine.setns_init import ExecPlan


class ExecOptions(Record):
    """What the command line says; paths are absolute.  *process* is the object of the process file: with it, what stands
    below *process* up to *no_new_privileges* does not count."""

    id: str
    root: str
    process: dict[str, Any] | None = None
    args: tuple[str, ...] = ()
    cwd: str = ""
    env: tuple[str, ...] = ()
    user: str = ""
    additional_gids: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    tty: bool = False
    apparmor_profile: str = ""
    selinux_label: str = ""
    no_new_privileges: bool | None = None
    detach: bool = False
    pid_file: str = ""
    console_socket: str = ""
    pidfd_socket: str = ""
    preserve_fds: int = 0
    cgroup: str = ""
    ignore_paused: bool = False

    @property
    def terminal(self) -> bool:
        """Whether the process is to have a terminal."""
        return self.tty if self.process is None else bool(self.process.get("terminal"))


def read_process_file(data: bytes, path: str) -> dict[str, Any]:
    """The process object in the file *path* with the text *data*; its members are not looked at yet."""
    value = parse_json(data, path)
    if value is None:
        raise ConfigError(path, "process property must not be empty")
    return as_object(value, path)


def exec_process(options: ExecOptions, started: Started) -> int:
    """Run the process of *options* through the child *started*; returns 0 when detached, else its exit code.

    Raises :class:`GpurunError`; then the process has not run, and nothing of it is left.
    """
    made = [0]  # the pid of the process, once there is one
    try:
        warnings, pidfd, master = _start(options, started, made)
    except BaseException:
        if made[0]:
            kill_child(made[0])
        dismiss(started)
        raise
    for warning in warnings:
        log.warning(warning)
    posix.close(started.channel)
    return 0 if options.detach else wait_foreground(made[0], pidfd, master)


def _start(options: ExecOptions, started: Started, made: list[int]) -> tuple[tuple[str, ...], int, int]:
    """Have the process made, and let it go; returns the plan's warnings, its pidfd, and the master of its terminal or -1."""
    state = store.load(options.root, options.id)
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
    init = open_init(state)
    if init is None:
        raise GpurunError("cannot exec in a stopped container")
    if state.manager:
        from gpurun.cgroup.systemd import enter

        enter(state.manager, started.pid)  # else nothing that it makes could be in the container's cgroup
    cgroup, other_cgroup = [_without_way_up(fd) for fd in open_cgroups(state, options.cgroup)]
    ours, its = _console(options)
    files = {"init": init, "cgroup": cgroup, "other_cgroup": other_cgroup, "console": its}
    files = {name: fd for name, fd in files.items() if fd >= 0}
    try:
        plan, warnings = _plan(options, state)
        pid = made[0] = _serve(plan, started, files, state, options.root)
    finally:
        for fd in files.values():
            posix.close(fd)
    log.debug(f"the process is {pid}, in the container's namespaces")
    pidfd = lp.pidfd_open(pid)
    master = _hand_over(options, ours, pid, pidfd)
    sync.send(started.channel, "go")
    return warnings, pidfd, master


def open_cgroups(state: store.State, sub: str) -> tuple[int, int]:
    """Descriptors of the cgroup that the process is to be born in, and of the one to take when that cannot be (-1: none).

    *sub*, a path below the container's cgroup, is the caller's own choice: then there is no other.  A container that has
    none (--cgroup-manager disabled, or a caller that may make none) leaves its processes in the caller's.
    """
    if not state.cgroup and not sub:
        return -1, -1
    try:
        cgroup = posix.open(state.cgroup, control.DIRECTORY)
    except OSError as e:
        if sub or e.errno not in (2, 19):
            raise StepError("open the cgroup", state.cgroup, e.errno) from None
        cgroup = -1  # removed by the container, which has a tree of its own
    if sub:
        return _open_sub_cgroup(cgroup, sub), -1
    own = _cgroup_of(state.pid)
    if cgroup >= 0 and own and state.cgroup.endswith(own):
        return cgroup, -1
    from gpurun.cgroup.tree import find_tree, join_root

    try:
        return cgroup, posix.open(join_root(find_tree().root, own), control.DIRECTORY)
    except OSError:
        if cgroup < 0:
            raise StepError("open the cgroup", state.cgroup, 2) from None
        return cgroup, -1


def _without_way_up(cgroup: int) -> int:
    """The open *cgroup* as a mount of its own: the new process is born with it, and who in the container may look into that
    process finds no ``..`` to the host's tree.  Where we may make no mounts it stays as it is."""
    if cgroup < 0:
        return cgroup
    try:
        tree = lm.open_tree(cgroup, "", lm.OPEN_TREE_CLONE)
    except OSError:
        return cgroup
    posix.close(cgroup)
    return tree


def _open_sub_cgroup(cgroup: int, sub: str) -> int:
    """The cgroup *sub* below the one that is open; the container may have written there, so no link leads anywhere."""
    path = sub.strip("/") or "."
    if ".." in path.split("/"):
        raise GpurunError(f"bad sub cgroup path: {sub}")
    resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
    try:
        return openat2(cgroup, path, control.DIRECTORY, resolve)
    except OSError as e:
        raise StepError("open the sub cgroup", sub, e.errno) from None
    finally:
        posix.close(cgroup)


def _cgroup_of(pid: int) -> str:
    """The cgroup of *pid*, absolute in our tree; empty when it is outside of what we see."""
    try:
        data = read_file(f"/proc/{pid}/cgroup", 1 << 16)
    except OSError:
        return ""  # it has ended; joining its namespaces will say so
    for line in data.split(b"\n"):
        if line.startswith(b"0::"):
            path = line[3:].decode("utf-8", "surrogateescape")
            return "" if path.startswith("/..") or path == "/" else path
    return ""


def _console(options: ExecOptions) -> tuple[int, int]:
    """(our end, the process' end) of the way that its terminal's master would take; -1 where there is none."""
    if not options.terminal:
        return -1, -1
    from gpurun.engine.terminal import connect_socket, console_pair

    return (-1, connect_socket(options.console_socket)) if options.console_socket else console_pair()


def _plan(options: ExecOptions, state: store.State) -> tuple[ExecPlan, tuple[str, ...]]:
    from gpurun.engine.exec_plan import ExecHost, plan_exec

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
    from gpurun.engine.exec_plan import read_saved_config

    path = f"{root}/{container_id}/config.json"
    return read_saved_config(read_file(path, 64 << 20), path)


def _same_user_namespace(pid: int) -> bool:
    ours, its = posix.stat("/proc/self/ns/user"), posix.stat(f"/proc/{pid}/ns/user")
    return (ours.st_dev, ours.st_ino) == (its.st_dev, its.st_ino)


def _serve(plan: ExecPlan, started: Started, files: dict[str, int], state: store.State, root: str) -> int:
    """Send the plan with the *files* by their names and answer until the process is ready to execve(2); returns its pid."""
    kills = control.oom_kill_count(state.cgroup)
    pid = 0
    try:
        try:
            sync.send_files(started.channel, tuple(files.values()), "plan", to_wire(plan), tuple(files))
        except BrokenPipeError:
            pass  # it has ended; its last message, if any, says why
        ready = False
        while True:
            message = sync.receive(started.channel)
            if message is None:
                oom = " (possibly OOM-killed)" if control.oom_kill_count(state.cgroup) > kills else ""
                raise GpurunError(f"unable to start container process: it ended before it could start{oom}")
            word, *rest = message
            if word == "failed":
                raise GpurunError(f"unable to start container process: {rest[0]}")
            if word in ("child", "ready"):  # two processes say that, in any order
                pid = int(rest[0]) if word == "child" else pid
                ready = ready or word == "ready"
                if pid and ready:
                    _prepare(plan, state, pid)
                    sync.send(started.channel, "go")
            elif word == "created":
                posix.waitpid(started.pid, 0)
                if rest:
                    _send_listener(state, root, pid, int(rest[0]))
                return pid
    except BaseException:
        if pid:
            kill_child(pid)
        raise


def _send_listener(state: store.State, root: str, pid: int, listener: int) -> None:
    """The filter's agent is told of each process: give it the listener, which is a descriptor of the process."""
    from gpurun.engine.seccomp import send_listener
    from gpurun.oci.seccomp import read_seccomp
    from gpurun.security.seccomp import plan_seccomp

    seccomp = _saved_config(root, state.id).linux.seccomp or {}
    plan = plan_seccomp(read_seccomp(seccomp, "linux.seccomp"), posix.uname().machine)
    if plan is not None:
        send_listener(plan, pid, listener, store.state_json(state, "running"))


def _prepare(plan: ExecPlan, state: store.State, pid: int) -> None:
    """What only we may do for the process: its limits, and streams that a user namespace's user can open."""
    if plan.namespaces & lp.CLONE_NEWUSER:
        from gpurun.ns.namespaces import host_id

        uid = host_id(read_file(f"/proc/{state.pid}/uid_map").decode(), plan.process.uid)
        for fd in (0, 1, 2):
            if uid >= 0 and posix.fstat(fd).st_mode & 0o170000 in (0o010000, 0o140000):
                try:
                    posix.fchown(fd, uid, -1)
                except PermissionError:
                    if posix.geteuid() == 0:
                        raise
    for resource, soft, hard in plan.process.rlimits:
        try:
            lp.prlimit(pid, resource, soft, hard)
        except OSError as e:
            raise StepError("set the limit", f"{resource} to {soft}:{hard}", e.errno) from None


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
