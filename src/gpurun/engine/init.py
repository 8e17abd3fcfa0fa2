"""The container's init, from its interpreter's start to execve(2) of the user's process.

It begins in a fresh, isolated interpreter, from a sealed executable, that create starts before it knows what is to be
made.  With the plan this starter clones the init into the container's namespaces and cgroup, as a child of create, and ends:
so what its interpreter takes of memory is not the container's, and none of the caller's memory is in it.  The init imports
everything it will ever need before it leaves the host's tree: what is imported later would come from the image, with the
host's privileges.
"""

from __future__ import annotations

import posix
import sys

from gpurun.engine import sync
from gpurun.engine.become import (
    become_process,
    environment,
    execute,
    execve_filtered,
    notify_first,
    null_stdio,
    open_proc,
    write_proc,
)
from gpurun.engine.hooks import run_hooks
from gpurun.engine.plan import InitPlan
from gpurun.engine.process import ProcessPlan
from gpurun.engine.signals import end_on_signals
from gpurun.engine.state import State, state_json
from gpurun.errors import GpurunError, oserror_text
from gpurun.hook.edits import ContainerEdits
from gpurun.launcher.child import end_imports
from gpurun.linux import process as lp
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.fs import O_DIRECTORY, O_PATH
from gpurun.linux.keyring import join_session_keyring
from gpurun.linux.mount import open_tree_path
from gpurun.linux.sched import reset_affinity
from gpurun.ns import devices, masks, rootfs
from gpurun.ns.loopback import loopback_up
from gpurun.ns.namespaces import NamespacePlan
from gpurun.ns.path import make_dirs
from gpurun.ns.spawn import spawn
from gpurun.ns.steps import is_late
from gpurun.record import from_wire, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from gpurun.engine.hooks import Execve
    from gpurun.hook.apply import Opened
    from gpurun.ns.steps import DeviceStep

    ApplyEdits = Callable[[InitPlan, int, int, Opened | None], None]

_NEW_LISTENER = 8  # SECCOMP_FILTER_FLAG_NEW_LISTENER


def main() -> NoReturn:
    """Entry point of the child interpreter: ``argv[1]`` is the descriptor of the socket."""
    channel = int(sys.argv[1])
    posix.set_inheritable(channel, False)
    try:
        plan, fds, opened = _become_init(channel)
        _run(plan, fds, opened)
    except BaseException as e:  # nothing may leave here but by _exit: the parent tells the error
        try:
            sync.send(channel, "failed", _error_text(e))
        except OSError:
            posix.write(2, f"gpurun init: {_error_text(e)}\n".encode("utf-8", "replace"))
    posix._exit(1)


def _error_text(e: BaseException) -> str:
    if isinstance(e, GpurunError):
        return str(e)
    return oserror_text(e) if isinstance(e, OSError) else f"{type(e).__name__}: {e}"


def _become_init(channel: int) -> tuple[InitPlan, sync.Descriptors, Opened | None]:
    """The starter's part: make the init and end; returns in the init, where the parent has lent it what it lends.

    The third thing is what the device edits bring from the host, opened already.
    """
    received = sync.receive_files(channel)
    edits: ContainerEdits | None = None
    opened: Opened | None = None
    while received is not None and received[0][0] != "plan":
        _import_for_edits()  # while the parent looks for the devices
        if received[0][0] == "edits":
            from gpurun.hook.apply import open_sources

            edits = from_wire(received[0][1])
            opened = open_sources(edits)  # while it makes what the plan says
        received = sync.receive_files(channel)
    if received is None:
        posix._exit(1)  # the parent has refused what it was asked for, and told why
    (_, namespaces_wire, plan_wire, names, edits_came), files = received
    if len(names) != len(files):
        raise GpurunError(f"{len(names)} files were sent, {len(files)} came: the limit RLIMIT_NOFILE is too low")
    named = dict(zip(names, files))  # noqa: B905 - as many: looked at above
    namespaces: NamespacePlan = from_wire(namespaces_wire)
    joins = tuple([(join, named.pop(f"{join.type} namespace")) for join in namespaces.joins])
    cgroup = named.pop("cgroup", -1)
    # A user namespace that is joined may hold somebody who waits for us: there is to be no moment to look into the init.
    # Of one that may not be looked into, not even its parent could write the id maps and clock offsets of new namespaces.
    lent = namespaces.new & (lp.CLONE_NEWUSER | lp.CLONE_NEWTIME)
    if not lent:
        lp.prctl(lp.PR_SET_DUMPABLE, 0)
    pid = spawn(namespaces, joins, cgroup, lambda pid: sync.send(channel, "child", pid))
    if pid:
        sync.send(channel, "spawned", pid)
        posix._exit(0)
    if lent:
        lp.prctl(lp.PR_SET_DUMPABLE, 0)
    for join, fd in joins:
        if join.flag == lp.CLONE_NEWNS:
            named["mount_namespace"] = fd
        else:
            posix.close(fd)
    if cgroup >= 0:
        posix.close(cgroup)
    fds = sync.Descriptors(channel, **named)
    plan: InitPlan = from_wire(plan_wire)  # while the parent lends what it lends
    if edits_came:
        if edits is None:
            raise GpurunError("the device edits that were to come before the plan did not come")
        plan = replace(plan, edits=edits)
    _expect_go(fds)
    return plan, fds, opened


def _run(plan: InitPlan, fds: sync.Descriptors, opened: Opened | None) -> None:
    posix.setsid()
    posix.umask(0)
    reset_affinity()
    proc_fd = open_proc()
    if plan.process.oom_score_adj is not None:
        write_proc(proc_fd, "self/oom_score_adj", str(plan.process.oom_score_adj))
    if fds.mount_namespace >= 0:
        lp.setns(fds.mount_namespace, lp.CLONE_NEWNS)
        proc_fd = open_proc()
    if plan.session_keyring:
        _join_keyring(plan, proc_fd)
    if plan.new_network:
        loopback_up()
    apply_edits = _import_all(plan, fds)
    null_tree = open_tree_path("/dev/null", recursive=False)

    trees = _receive_trees(fds)
    root_fd = _enter(plan, trees.pop(-1, -1))
    views: dict[str, int] = {}
    late = rootfs.mount_all(root_fd, plan.rootfs, plan.mounts, _sources(plan, fds, trees), plan.cgroup_view, views)
    if not plan.dev_is_bind:
        if fds.nodes >= 0:
            devices.take_nodes(root_fd, plan.devices + _edit_nodes(plan), fds.nodes)
        else:
            devices.make_devices(root_fd, plan.devices, plan.user_namespace)
        devices.make_dev_links(root_fd)
    if apply_edits:
        apply_edits(plan, root_fd, fds.journal, opened)
    if plan.parent_hooks:
        sync.send(fds.channel, "hooks")
        _expect_go(fds)
    state = State(plan.id, plan.bundle, plan.rootfs, plan.cgroup_path, True, posix.getpid(), annotations=plan.annotations)
    if plan.create_container:
        run_hooks("createContainer", plan.create_container, state_json(state, "creating"), lambda: posix.fchdir(root_fd))
    _leave_host(plan, root_fd)

    null_stdio(root_fd)
    posix.close(make_dirs(root_fd, plan.process.cwd))
    if plan.process.terminal:
        _set_up_terminal(plan.process, root_fd, proc_fd, fds.console)
    for fd, _ in late:
        rootfs.make_readonly(fd, "a mount")
        posix.close(fd)
    if plan.readonly:
        rootfs.make_readonly(root_fd, "the rootfs")
    if plan.hostname:
        lp.sethostname(plan.hostname)
    if plan.domainname:
        lp.setdomainname(plan.domainname)
    for path, value in plan.sysctl:
        write_proc(proc_fd, f"sys/{path}", value)
    if plan.process.apparmor_profile or plan.process.selinux_label:
        from gpurun.security.lsm import apply_labels  # imported before the host's tree was left

        apply_labels(proc_fd, plan.process.apparmor_profile, plan.process.selinux_label)
    masks.readonly_paths(root_fd, views, plan.readonly_paths)
    masks.mask_paths(root_fd, views, plan.masked_paths, null_tree)
    for fd in (null_tree, proc_fd, *views.values()):
        posix.close(fd)
    posix.umask(plan.process.umask)
    if plan.process.no_new_privileges:
        lp.prctl(lp.PR_SET_NO_NEW_PRIVS, 1)
    if plan.process.knobs is not None:
        from gpurun.engine.knobs import apply_knobs  # imported before the host's tree was left

        apply_knobs(plan.process.knobs)
    sync.send(fds.channel, "ready")
    _expect_go(fds)
    # Only now: before its limits are set the device program may be missing, and the file could be a device node.
    env = environment(plan.process, root_fd)
    posix.close(root_fd)
    path = become_process(plan.process, env)
    seccomp = plan.process.seccomp
    if seccomp is not None and seccomp[1] & _NEW_LISTENER:
        listener, become = notify_first(path, plan.process.args, env, 3 + plan.preserve_fds, seccomp)
        sync.send(fds.channel, "created", listener)
        _wait_for_start(fds.fifo)
        _run_start_hooks(plan, state, env, None)
        become()
    end_on_signals()
    sync.send(fds.channel, "created")
    posix.close(fds.channel)
    _wait_for_start(fds.fifo)
    _run_start_hooks(plan, state, env, seccomp)
    execute(path, plan.process.args, env, 3 + plan.preserve_fds, seccomp)


def _wait_for_start(fifo: int) -> None:
    if fifo >= 0 and not posix.read(fifo, 1):
        posix._exit(1)


def _run_start_hooks(plan: InitPlan, state: State, env: dict[str, str], seccomp: tuple[bytes, int] | None) -> None:
    """The startContainer hooks; *seccomp* is the filter they are to run under, if it is not on already."""
    if not plan.start_container:
        return
    hook_env = tuple([f"{k}={v}" for k, v in env.items()])
    execve: Execve = posix.execve
    if seccomp is not None:

        def execve(path: str, args: tuple[str, ...], env: dict[str, str]) -> None:
            execve_filtered(path, args, env, seccomp)

    run_hooks("startContainer", plan.start_container, state_json(state, "created"), env=hook_env, execve=execve)


def _apply_edits(plan: InitPlan, root_fd: int, journal_fd: int, opened: Opened | None) -> None:
    """Apply the device edits and close the journal, however that ends."""
    from gpurun.hook.apply import apply_edits  # imported before the host's tree was left
    from gpurun.hook.target import Target
    from gpurun.ns.journal import Journal

    journal = Journal(root_fd, journal_fd)
    try:
        apply_edits(plan.edits, Target(root_fd, journal, plan.user_namespace, plan.readonly), opened)
    finally:
        journal.close()


def _edit_nodes(plan: InitPlan) -> tuple[DeviceStep, ...]:
    """The nodes of the device edits, of which the parent lends those that the host lacks."""
    if not plan.edits.device_nodes:
        return ()
    from gpurun.hook.nodes import node_step  # imported before the host's tree was left

    return tuple([node_step(node) for node in plan.edits.device_nodes])


def _import_all(plan: InitPlan, fds: sync.Descriptors) -> ApplyEdits | None:
    """Import what the rest of the road needs, then take away the means to; returns what applies the edits, if any."""
    apply: ApplyEdits | None = None
    if plan.edits != ContainerEdits():
        _import_for_edits()
        apply = _apply_edits
    if any(m.options.copy_up for m in plan.mounts):
        import gpurun.ns.copyup  # noqa: F401
    if plan.process.terminal:
        import gpurun.engine.terminal  # noqa: F401
    if fds.trees >= 0:
        import gpurun.ns.sources  # noqa: F401
    if plan.process.knobs is not None:
        import gpurun.engine.knobs  # noqa: F401
    if plan.process.apparmor_profile or plan.process.selinux_label:
        import gpurun.security.lsm  # noqa: F401
    if plan.process.seccomp is not None:
        import gpurun.linux.seccomp  # noqa: F401
    end_imports()
    return apply


def _import_for_edits() -> None:
    import gpurun.hook.apply
    import gpurun.hook.nodes
    import gpurun.hook.target
    import gpurun.ns.journal  # noqa: F401


def _join_keyring(plan: InitPlan, proc_fd: int) -> None:
    label = plan.process.selinux_label
    if not label:
        join_session_keyring(f"_ses.{plan.id}")
        return
    from gpurun.security.lsm import apply_selinux

    apply_selinux(proc_fd, label, "keycreate")
    join_session_keyring(f"_ses.{plan.id}")
    apply_selinux(proc_fd, "", "keycreate")


def _expect_go(fds: sync.Descriptors) -> None:
    if sync.receive(fds.channel) != ("go",):
        posix._exit(1)  # the parent gave up (and has told why) or was killed


def _receive_trees(fds: sync.Descriptors) -> dict[int, int]:
    if fds.trees < 0:
        return {}
    from gpurun.ns.sources import receive_trees  # imported before the host's tree was left

    return receive_trees(fds.trees)


def _sources(plan: InitPlan, fds: sync.Descriptors, trees: dict[int, int]) -> Callable[[int], int]:
    """The trees of bind mounts that the parent opens: most have come before the first mount, others are asked for when it
    is their turn."""

    def source(index: int) -> int:
        step = plan.mounts[index]
        if fds.trees < 0 or not is_late(step, plan.rootfs) or not (plan.user_namespace or step.idmap is not None):
            return trees.pop(index, -1)
        sync.send(fds.channel, "source", index)
        answer = sync.receive_files(fds.channel)
        if answer is None:
            posix._exit(1)  # the parent gave up (and has told why) or was killed
        (tree,) = answer[1]
        return tree

    return source


def _enter(plan: InitPlan, tree: int) -> int:
    if not plan.mount_namespace:
        return posix.open(plan.rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)
    return rootfs.enter_root(plan.rootfs, plan.propagation, tree)


def _leave_host(plan: InitPlan, root_fd: int) -> None:
    if not plan.mount_namespace:
        posix.fchdir(root_fd)
        posix.chroot(".")
        posix.chdir("/")
    elif plan.no_pivot:
        rootfs.move_root(root_fd, plan.rootfs)
    else:
        rootfs.pivot(root_fd)
    rootfs.set_root_propagation(root_fd, plan.propagation)


def _set_up_terminal(process: ProcessPlan, root_fd: int, proc_fd: int, console: int) -> None:
    from gpurun.engine import terminal  # imported before the host's tree was left

    master, peer = terminal.open_pty(root_fd, proc_fd, process.console_size)
    terminal.bind_console(root_fd, peer)
    terminal.send_master(console, master)
    terminal.take_terminal(peer)
