"""The container's init, from its birth to execve(2) of the user's process.

It is a copy of the caller where that is sealed (engine/clone/init.py), else of a starter (init_starter.py).  What the
interpreter takes of memory is not the container's either way.  The init has imported everything it will ever need before it
leaves the host's tree: what is imported later would come from the image, with the host's privileges.
"""

from __future__ import annotations

import posix

from gpurun.cdi.edits import ContainerEdits
from gpurun.engine import messages
from gpurun.engine.hook_output import close_outputs
from gpurun.engine.hooks import run_hooks
from gpurun.engine.inside.enter_process import (
    become_process,
    close_listener,
    environment,
    execute,
    execve_filtered,
    fail,
    filtered_early,
    notify_first,
    null_stdio,
    open_proc,
    write_proc,
)
from gpurun.engine.plan.records import InitPlan
from gpurun.engine.signals import end_on_signals
from gpurun.engine.state import State, state_json
from gpurun.errors import Step, StepError
from gpurun.launcher.fresh_interpreter import end_imports
from gpurun.linux import process as lp
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.fs import O_DIRECTORY, O_PATH, close_others
from gpurun.linux.process import make_session_keyring
from gpurun.linux.sched import reset_affinity
from gpurun.ns import devices, masks, pivot, rootfs
from gpurun.ns.loopback import loopback_up
from gpurun.ns.mount import import_stand_ins, may_have_long_options
from gpurun.ns.mount_plan import is_late
from gpurun.ns.namespaces import NamespacePlan
from gpurun.ns.path import make_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from gpurun.engine.hooks import Execve
    from gpurun.hook.apply import Opened

    ApplyEdits = Callable[[InitPlan, int, int, Opened | None, dict[str, int], set[int], Callable[[int, int], None]], None]

_NEW_LISTENER = 8  # SECCOMP_FILTER_FLAG_NEW_LISTENER


def become_init(plan: InitPlan, fds: messages.Descriptors, opened: Opened | None) -> NoReturn:
    """The init, once it is in its namespaces: wait for ``go``, and all the rest.  Never returns; what goes wrong the parent
    is told.  *opened* is what the device edits bring from the host, opened already."""
    try:
        lp.set_name("gpurun:[init]")
        messages.expect_go(fds.channel)
        _Init(plan, fds, opened).run()
    except BaseException as e:  # nothing may leave here but by _exit
        fail(fds.channel, "init", e)


def open_edits(
    edits: ContainerEdits, rootfs_path: str, propagation: pivot.Propagation, label: str
) -> tuple[int, Opened | None]:
    """What can be opened for device edits before there is an init: the rootfs as a mount tree, -1 where that fails (the init
    will try, and tell what is wrong), and what the edits bring from the host.  Returns (tree, opened)."""
    from gpurun.hook.apply import open_sources

    root = -1
    try:  # before the sources: mountinfo is in the order in which mounts are made, and df looks for the root first
        root = pivot.root_tree(rootfs_path, propagation)
    except StepError:
        pass
    return root, open_sources(edits, label)


def set_by_parent(namespaces: NamespacePlan) -> int:
    """The new namespaces for which the parent writes files of the init in /proc: id maps and clock offsets.

    The parent cannot write them for an init that is not dumpable.  An init without them is not dumpable from its birth: a
    user namespace that it joins may hold a process that waits for a moment in which it can look into the init.
    """
    return namespaces.new & (lp.CLONE_NEWUSER | lp.CLONE_NEWTIME)


class _Init:
    """The init, from ``go`` to execve(2): each method is one phase, and :meth:`run` is their order.

    *root_fd* is the rootfs and *proc_fd* the host's /proc, for what is written there before there is one inside; *views* are
    the mounts of /proc and /sys by their paths, *own* the device numbers of the file systems that belong only to the
    container.
    """

    def __init__(self, plan: InitPlan, fds: messages.Descriptors, opened: Opened | None) -> None:
        self.plan, self.fds, self.opened = plan, fds, opened
        self.root_fd = self.proc_fd = -1
        self.views: dict[str, int] = {}
        self.own: set[int] = set()
        self.state = State(
            plan.id, plan.bundle, plan.rootfs, plan.cgroup_path, True, posix.getpid(), annotations=plan.annotations
        )
        self.outputs = (fds.hook_stdout, fds.hook_stderr)

    def run(self) -> NoReturn:
        """Go through all phases; raises what stops one of them."""
        self._begin_session()
        apply_edits = self._close_the_rest()
        late = self._mount()
        self._make_devices()
        if apply_edits:
            apply_edits(
                self.plan, self.root_fd, self.fds.journal, self.opened, self.views, self.own,
                lambda index, number: messages.report(self.fds.channel, "uncovered", index, number),
            )  # fmt: skip
        null_tree = masks.null_cover(self.views) if self.plan.masked_paths else -1
        self._run_create_hooks()
        _leave_host(self.plan, self.root_fd)

        self._set_up_streams()
        self._make_readonly(late)
        self._name_and_tune()
        self._cover_kernel_files(null_tree)
        env = self._leave_descriptors()
        self._set_attributes()
        messages.report(self.fds.channel, "ready")
        messages.expect_go(self.fds.channel)
        self._become_the_program(become_process(self.plan.process, env), env)

    def _begin_session(self) -> None:
        posix.setsid()
        posix.umask(0)
        reset_affinity()
        self.proc_fd = open_proc()
        if self.fds.mount_namespace >= 0:
            lp.setns(self.fds.mount_namespace, lp.CLONE_NEWNS)
            self.proc_fd = open_proc()
        if self.plan.session_keyring:
            _join_keyring(self.plan, self.proc_fd)
        if self.plan.new_network:
            with Step("set up the loopback device of", "the new network namespace"):
                loopback_up()

    def _close_the_rest(self) -> ApplyEdits | None:
        """Import all that is needed, then close every descriptor that is not on the list; returns what applies the edits."""
        apply_edits = import_all(self.plan, self.fds.trees >= 0)
        end_imports()
        sources = self.opened.descriptors if self.opened else ()
        lent = [getattr(self.fds, name) for name in type(self.fds)._fields]
        close_others((*lent, self.proc_fd, *sources, *self.plan.preserved))
        return apply_edits

    def _mount(self) -> tuple[tuple[int, int], ...]:
        """Enter the rootfs and make the mounts; returns those that become read-only later."""
        plan = self.plan
        trees = _receive_trees(self.fds)
        if trees and plan.user_namespace and plan.edits != ContainerEdits():
            from gpurun.hook.apply import opened_sources  # imported before the host's tree was left

            self.opened = opened_sources(plan.edits, trees, len(plan.mounts))
        if not plan.mount_namespace:
            trees.update(pivot.cut_sources(plan.mounts, plan.rootfs, plan.propagation))
        elif not plan.user_namespace:
            trees.update(pivot.shared_sources(plan.mounts, plan.rootfs, plan.propagation))
        self.root_fd = _enter(plan, trees.pop(-1, self.fds.root))
        source = _sources(plan, self.fds, trees)
        return rootfs.mount_all(self.root_fd, plan.rootfs, plan.mounts, source, plan.cgroup_view, self.views, self.own)

    def _take_nodes(self) -> None:
        plan, root_fd, lent = self.plan, self.root_fd, self.fds.nodes
        if not plan.edits.device_nodes:
            devices.take_nodes(root_fd, plan.devices, lent)
            return
        from gpurun.engine.inside.device_edits import left_out, nodes_of  # imported before the host's tree was left

        nodes = nodes_of(plan)
        devices.take_nodes(root_fd, plan.devices + nodes, lent, left_out(root_fd, nodes, self.own))

    def _make_devices(self) -> None:
        if self.plan.dev_is_bind:
            return
        if self.fds.nodes >= 0:
            self._take_nodes()
        else:
            devices.make_devices(self.root_fd, self.plan.devices, self.plan.user_namespace)
        devices.make_dev_links(self.root_fd)

    def _run_create_hooks(self) -> None:
        """Let the caller run prestart and createRuntime, then run createContainer."""
        if self.plan.parent_hooks:
            messages.report(self.fds.channel, "hooks")
            messages.expect_go(self.fds.channel)
        if self.plan.create_container:
            hooks, text = self.plan.create_container, state_json(self.state, "creating")
            run_hooks("createContainer", hooks, text, {}, lambda: posix.fchdir(self.root_fd), self.outputs)
        if not self.plan.start_container:
            close_outputs(self.outputs)

    def _set_up_streams(self) -> None:
        null_stdio(self.root_fd, self.proc_fd)
        posix.close(make_dirs(self.root_fd, self.plan.process.cwd))
        if self.plan.process.terminal:
            from gpurun.engine.terminal import set_up_terminal  # imported before the host's tree was left

            set_up_terminal(self.root_fd, self.proc_fd, self.plan.process.console_size, self.fds.console)

    def _make_readonly(self, late: tuple[tuple[int, int], ...]) -> None:
        for fd, _ in late:
            rootfs.make_readonly(fd, "a mount")
            posix.close(fd)
        if self.plan.readonly:
            rootfs.make_readonly(self.root_fd, "the rootfs")

    def _name_and_tune(self) -> None:
        """The names of the host that the container has, its sysctls, and its labels."""
        plan = self.plan
        if plan.hostname:
            with Step("sethostname(2): set the host name", plan.hostname):
                lp.sethostname(plan.hostname)
        if plan.domainname:
            with Step("setdomainname(2): set the domain name", plan.domainname):
                lp.setdomainname(plan.domainname)
        for path, value in plan.sysctl:
            write_proc(self.proc_fd, f"sys/{path}", value)
        if plan.process.apparmor_profile or plan.process.selinux_label:
            from gpurun.security.lsm import apply_labels  # imported before the host's tree was left

            apply_labels(self.proc_fd, plan.process.apparmor_profile, plan.process.selinux_label)

    def _cover_kernel_files(self, null_tree: int) -> None:
        """The read-only and the masked paths, then the propagation of the root."""
        plan = self.plan
        masks.readonly_paths(self.root_fd, self.views, plan.readonly_paths)
        masks.mask_paths(self.root_fd, self.views, plan.masked_paths, null_tree, plan.mount_label)
        if plan.mount_namespace:  # only now: what is unbindable cannot be made read-only by a bind
            pivot.set_root_propagation(self.root_fd, plan.propagation)

    def _leave_descriptors(self) -> dict[str, str]:
        """Close what reaches beyond the container; returns the environment, for which files of the image were read."""
        env = environment(self.plan.process, self.root_fd, self.proc_fd)
        for fd in (self.proc_fd, self.root_fd, *self.views.values()):
            posix.close(fd)
        return env

    def _set_attributes(self) -> None:
        """What the process keeps, whoever it becomes."""
        process = self.plan.process
        posix.umask(process.umask)
        if process.no_new_privileges:
            lp.prctl(lp.PR_SET_NO_NEW_PRIVS, 1)
        if process.knobs is not None:
            from gpurun.engine.inside.scheduling import apply_knobs  # imported before the host's tree was left

            apply_knobs(process.knobs)

    def _become_the_program(self, path: str, env: dict[str, str]) -> NoReturn:
        """Say ``created``, wait for ``start``, run the startContainer hooks, execve(2)."""
        plan, seccomp = self.plan, self.plan.process.seccomp
        if seccomp is not None and seccomp[1] & _NEW_LISTENER:
            listener, become = notify_first(path, plan.process.args, env, plan.preserved, seccomp)
            messages.report(self.fds.channel, "created", listener)
            _wait_for_start(self.fds.fifo)
            close_listener(listener, seccomp[1])
            self._run_start_hooks(env, None)
            become()
        end_on_signals()
        is_on = not plan.start_container and filtered_early(plan.process)
        messages.report(self.fds.channel, "created")
        posix.close(self.fds.channel)
        _wait_for_start(self.fds.fifo)
        self._run_start_hooks(env, seccomp)
        execute(path, plan.process.args, env, plan.preserved, None if is_on else seccomp)

    def _run_start_hooks(self, env: dict[str, str], seccomp: tuple[bytes, int] | None) -> None:
        """The startContainer hooks; *seccomp* is the filter they are to run under, if it is not on already."""
        if not self.plan.start_container:
            return
        execve: Execve = posix.execve
        if seccomp is not None:

            def execve(path: str, args: tuple[str, ...], env: dict[str, str]) -> None:
                execve_filtered(path, args, env, seccomp)

        text = state_json(self.state, "created")
        run_hooks("startContainer", self.plan.start_container, text, env, outputs=self.outputs, execve=execve)


def _wait_for_start(fifo: int) -> None:
    if fifo >= 0 and not posix.read(fifo, 1):
        posix._exit(1)


def import_all(plan: InitPlan, has_trees: bool) -> ApplyEdits | None:
    """Import all that the init will need; returns what applies the edits, if any."""
    apply: ApplyEdits | None = None
    if plan.edits != ContainerEdits():
        from gpurun.engine.inside.device_edits import apply_plan

        apply = apply_plan
    if any(m.options.copy_up for m in plan.mounts):
        import gpurun.ns.copyup
    import_stand_ins()
    if any(may_have_long_options(m) for m in plan.mounts):
        import gpurun.ns.long_options  # noqa: F401
    if plan.process.terminal:
        import gpurun.engine.terminal  # noqa: F401
    if has_trees:
        import gpurun.ns.sources  # noqa: F401
    if plan.process.knobs is not None:
        import gpurun.engine.inside.scheduling  # noqa: F401
    if plan.process.apparmor_profile or plan.process.selinux_label:
        import gpurun.security.lsm  # noqa: F401
    if plan.process.seccomp is not None:
        import gpurun.linux.seccomp  # noqa: F401
    return apply


def import_for_edits() -> None:
    """Import what device edits need, ahead of the plan."""
    import gpurun.engine.inside.device_edits  # noqa: F401


def _join_keyring(plan: InitPlan, proc_fd: int) -> None:
    label = plan.process.selinux_label
    if not label:
        make_session_keyring(plan.session_keyring)
        return
    from gpurun.security.lsm import apply_selinux

    apply_selinux(proc_fd, label, "keycreate")
    make_session_keyring(plan.session_keyring)
    apply_selinux(proc_fd, "", "keycreate")


def _receive_trees(fds: messages.Descriptors) -> dict[int, int]:
    if fds.trees < 0:
        return {}
    from gpurun.ns.sources import receive_trees  # imported before the host's tree was left

    return receive_trees(fds.trees)


def _sources(plan: InitPlan, fds: messages.Descriptors, trees: dict[int, int]) -> Callable[[int], int]:
    """The trees of bind mounts that the parent opens: most have come before the first mount, others are asked for when it
    is their turn.  -1 is for us to open, also where the parent may not look into our mount namespace."""

    def source(index: int) -> int:
        step = plan.mounts[index]
        if fds.trees < 0 or not is_late(step, plan.rootfs) or not (plan.user_namespace or step.idmap is not None):
            return trees.pop(index, -1)
        messages.report(fds.channel, "source", index)
        answer = messages.receive_files(fds.channel)
        if answer is None:
            posix._exit(1)  # the parent gave up (and has said why) or was killed
        return answer[1][0] if answer[1] else -1

    return source


def _enter(plan: InitPlan, tree: int) -> int:
    if not plan.mount_namespace:
        return posix.open(plan.rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC)
    root_fd = pivot.enter_root(plan.rootfs, plan.propagation, tree)
    pivot.check_search(root_fd, plan.rootfs)
    return root_fd


def _leave_host(plan: InitPlan, root_fd: int) -> None:
    if not plan.mount_namespace:
        posix.fchdir(root_fd)
        posix.chroot(".")
        posix.chdir("/")
    elif plan.no_pivot:
        pivot.move_root(root_fd, plan.rootfs)
    else:
        pivot.pivot(root_fd)
