"""exec: another process in a container that is there.  The caller's side; the process' own is exec_init.py.

In a sealed interpreter the process is a copy of this one.  Else a starter is started before this module is even read, and
reads its modules while we read ours and plan; it does nothing until the plan is there.  Whatever is wrong with the request
touches nothing of the container.
"""

from __future__ import annotations

import posix

from gpurun import log
from gpurun.cgroup import control
from gpurun.engine import kept, messages
from gpurun.engine import state as store
from gpurun.engine.caller.children import end_all_children, kill_child
from gpurun.engine.caller.exec_cgroup import move_process, open_cgroups, without_way_up
from gpurun.engine.caller.lifecycle import wait_foreground
from gpurun.engine.clone.setter import clone_setter, may_clone_setter
from gpurun.engine.signals import block_signals
from gpurun.errors import ConfigError, GpurunError
from gpurun.launcher.fresh_interpreter import EXEC_ENTRY
from gpurun.launcher.sealed import is_sealed
from gpurun.linux import process as lp
from gpurun.linux.files import read_file
from gpurun.linux.procfs import open_pidfd
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import replace, to_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.engine.caller.start_init import Started
    from gpurun.engine.plan.exec import ExecOptions, SavedConfig
    from gpurun.engine.plan.records import ExecPlan

_ENDED = "unable to start container process: it ended before it could start"


def read_process_file(data: bytes, path: str) -> dict[str, Any]:
    """The process object in the file *path* with the text *data*; its members are not looked at yet.

    Raises :class:`ConfigError` for what is not an object.
    """
    value = parse_json(data, path)
    if value is None:
        raise ConfigError(path, "process property must not be empty")
    return as_object(value, path)


def exec_process(options: ExecOptions, started: Started | None) -> int:
    """Run the process of *options*; returns 0 when detached, else its exit code.  *started* makes it, where that has been
    started already.

    Raises :class:`GpurunError`; then the process has not run, and nothing of it is left.
    """
    return _Exec(options, started).run()


class _Exec:
    """A process being made; *made* is what there is of processes in the container, in the end the one that was asked for."""

    def __init__(self, options: ExecOptions, started: Started | None) -> None:
        self.options, self.started = options, started
        self.channel = -1 if started is None else started.channel
        self.made: list[int] = []

    def run(self) -> int:
        """See :func:`exec_process`."""
        try:
            warnings, pidfd, master = self._start()
        except BaseException:
            for pid in self.made:
                kill_child(pid)
            if self.started is not None:
                from gpurun.engine.caller.start_init import dismiss

                dismiss(self.started)
            end_all_children()
            raise
        log.warnings(warnings)
        posix.close(self.channel)
        return 0 if self.options.detach else wait_foreground(self.made[-1], pidfd, master)

    def _start(self) -> tuple[tuple[str, ...], int, int]:
        """Have the process made, and let it go; returns the plan's warnings, its pidfd, and the master of its terminal
        or -1."""
        options = self.options
        made_from = b""
        if is_sealed():  # the front may go by the plan the next time
            from gpurun.engine.caller.kept_plan import keep_plan, stamps

            made_from = stamps(options.root, options.id)
        state = _usable_container(options)
        init = open_pidfd(state.pid, state.start_time)
        if init is None:
            raise GpurunError("cannot exec in a stopped container")
        if self.started is None and not may_clone_setter(state):
            self._start_starter()
        if state.manager and self.started is not None:
            from gpurun.cgroup.systemd import enter

            enter(state.manager, self.started.pid)  # else nothing that it makes could be in the container's cgroup
        cgroups = dict(zip(("cgroup", "other_cgroup"), open_cgroups(state, options.cgroup), strict=True))
        ours, its = _console(options)
        files = {"init": init, **{name: without_way_up(fd) for name, fd in cgroups.items()}, "console": its}
        files = {name: fd for name, fd in files.items() if fd >= 0}
        try:
            plan, warnings = _plan(options, state)
            pid = self._make(replace(plan, root=_root_of(state)), state, files, cgroups)
        finally:
            for fd in {*files.values(), *cgroups.values()}:
                if fd >= 0:
                    posix.close(fd)
        log.debug(f"the process is {pid}, in the container's namespaces")
        pidfd = lp.pidfd_open(pid)
        master = _hand_over(options, ours, pid, pidfd)
        if not options.detach:
            block_signals()  # from now on they are the process's
        try:
            messages.send(self.channel, "go")
        except BrokenPipeError:
            raise GpurunError(_ENDED) from None
        if made_from and self.started is None and not warnings:
            keep_plan(options, state, plan, made_from)
        return warnings, pidfd, master

    def _start_starter(self) -> None:
        from gpurun.engine.caller.start_init import start_child

        self.started = start_child(EXEC_ENTRY, self.options.preserved)
        self.channel = self.started.channel

    def _make(self, plan: ExecPlan, state: store.State, files: dict[str, int], cgroups: dict[str, int]) -> int:
        """Have the process of *plan* made, up to its execve(2); returns its pid.  *files* are for the setter, by their
        names, *cgroups* those among them as they can be written to, -1 for one that has been closed."""
        if self.started is None and plan.affinity[0]:
            self._start_starter()  # what has that affinity before it is in the cgroup
        if self.started is not None:
            conversation = _Conversation(plan, state, self.options.root, self.channel, self.made)
            conversation.begin_with_starter(self.started, files, cgroups)
            return conversation.serve()
        for name, fd in cgroups.items():  # the setter is born with what is open here
            if fd >= 0 and fd not in files.values():
                posix.close(fd)
                cgroups[name] = -1

        def move(name: str, pid: int, dead: int) -> None:
            self.made.append(pid)
            if dead:  # else none was born where it belongs (gpurun.ns.birth)
                posix.waitpid(dead, 0)
            found = dict(zip(cgroups, open_cgroups(state, self.options.cgroup), strict=True))
            try:
                move_process(found, name, pid, state.cgroup)
            finally:
                for fd in found.values():
                    if fd >= 0:
                        posix.close(fd)

        self.channel, its = messages.channel()
        try:
            setter = clone_setter(plan, files, move, its)
        except GpurunError as e:
            raise GpurunError(f"unable to start container process: {e}") from None
        finally:
            posix.close(its)
        if setter not in self.made:  # moved, it has been added already
            self.made.append(setter)
        conversation = _Conversation(plan, state, self.options.root, self.channel, self.made)
        conversation.begin_with_setter(setter)
        return conversation.serve()


def _usable_container(options: ExecOptions) -> store.State:
    """The container of *options*, in which a process can be started; raises :class:`GpurunError`."""
    state = store.load(options.root, options.id)
    if kept.is_changing(options.root, options.id):
        from gpurun.engine.gpus.attach_steps import settle

        settle(options.root, options.id)  # or the process would get variables for GPUs that are not there
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
    return state


def _root_of(state: store.State) -> tuple[int, int] | None:
    """(device, inode) of the root directory of the container's init, to which exec is to come; None where the init has gone
    to another one by itself, or may not be looked at."""
    try:
        rootfs, found = posix.stat(state.rootfs), posix.stat(f"/proc/{state.pid}/root/")
    except OSError:
        return None
    root = (found.st_dev, found.st_ino)
    return root if root == (rootfs.st_dev, rootfs.st_ino) else None


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
    edits = kept.load_edits(options.root, options.id)
    seccomp = None
    if config.linux.seccomp is not None:
        seccomp = kept.load_seccomp(options.root, options.id)
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


class _Conversation:
    """What the processes of exec say until the one that was asked for is ready to execve(2): the starter, if there is one,
    then the setter, then the process (exec_init.py).  *made* gets what the caller is to end and to reap.
    """

    def __init__(self, plan: ExecPlan, state: store.State, root: str, channel: int, made: list[int]) -> None:
        self.plan, self.state, self.root, self.channel, self.made = plan, state, root, channel, made
        self.starter = self.setter = self.process = 0
        self.ready = False  # the setter has its limits
        self.files: tuple[str, ...] = ()
        self.cgroups: dict[str, int] = {}

    def begin_with_starter(self, started: Started, files: dict[str, int], cgroups: dict[str, int]) -> None:
        """Send the plan with the *files* by their names; *cgroups* are those among them, as they can be written to."""
        self.starter, self.files, self.cgroups = started.pid, tuple(files), cgroups
        try:
            messages.send_files(self.channel, tuple(files.values()), "plan", to_wire(self.plan), self.files)
        except BrokenPipeError:
            messages.hang_up(self.channel)  # it has ended; its last message, if any, says why

    def begin_with_setter(self, pid: int) -> None:
        """The setter *pid* has been made."""
        self.setter = pid
        messages.let_go(self.channel)

    def serve(self) -> int:
        """Answer until the process is ready; returns its pid.  Raises :class:`GpurunError`."""
        kills = control.oom_kill_count(self.state.cgroup)
        answers = {"move": self._move, "child": self._child, "ready": self._ready}
        while True:
            speaker = self.process or self.setter or self.starter
            said = messages.receive_report(self.channel, (speaker,))
            if said is None:
                oom = " (possibly OOM-killed)" if control.oom_kill_count(self.state.cgroup) > kills else ""
                raise GpurunError(f"{_ENDED}{oom}")
            if said.word == "failed":
                raise GpurunError(f"unable to start container process: {said.text}")
            if said.word == "created" and self.process:
                if said.numbers:
                    _send_listener(self.state, self.root, self.process, said.numbers[0])
                return self.process
            if said.word not in answers or not answers[said.word](said.numbers):
                raise GpurunError(
                    f'unable to start container process: "{said.word}" must not come from process {said.sender}'
                )
            messages.let_go(self.channel)

    def _move(self, numbers: tuple[int, ...]) -> bool:
        """The starter's setter could not be born where it belongs; returns whether it is the turn of this word, as the
        others do."""
        if self.setter:
            return False
        moved, dead, index = numbers
        self.made.append(messages.check_child(moved))
        if dead:  # else none was born where it belongs (gpurun.ns.birth)
            posix.waitpid(messages.check_child(dead), 0)
        move_process(self.cgroups, self.files[index], moved, self.state.cgroup)
        return True

    def _child(self, numbers: tuple[int, ...]) -> bool:
        """The starter has made the setter, or the setter the process."""
        if not self.setter:
            self.setter = messages.check_child(numbers[0])
            self.made.append(self.setter)
            return True
        if not self.ready or self.process:
            return False
        self.process = messages.check_child(numbers[0])
        self.made.append(self.process)
        for pid in (self.starter, self.setter):  # both have done their part
            if pid:
                posix.waitpid(pid, 0)
        self.made.remove(self.setter)
        _schedule(self.plan, self.process)
        return True

    def _ready(self, numbers: tuple[int, ...]) -> bool:
        """The setter wants what only we may do."""
        if not self.setter or self.ready:
            return False
        self.ready = True
        _prepare(self.plan, self.state, self.setter)
        return True


def _send_listener(state: store.State, root: str, pid: int, listener: int) -> None:
    """The filter's agent is notified of each process: give it the listener, which is a descriptor of the process."""
    from gpurun.engine.caller.seccomp import send_listener
    from gpurun.oci.seccomp import read_seccomp
    from gpurun.security.seccomp import plan_seccomp

    seccomp = _saved_config(root, state.id).linux.seccomp or {}
    plan = plan_seccomp(read_seccomp(seccomp), posix.uname().machine)
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
