"""create: the caller's side.  Plan, and carry the plan out, taking everything back when a step fails.

What outlives the process is recorded before it is made: the state directory names the cgroup before there is one, so a
create that is killed at any moment leaves what ``delete --force`` can remove.
"""

from __future__ import annotations

import posix
from _stat import S_ISDIR

from gpurun import log
from gpurun.cdi.edits import ContainerEdits
from gpurun.cgroup import manager
from gpurun.engine import kept, messages
from gpurun.engine import state as store
from gpurun.engine.caller import cgroup, host_resources
from gpurun.engine.caller.bundle import CreateOptions, plan_bundle
from gpurun.engine.caller.children import kill_children
from gpurun.engine.caller.rollback import PROCESSES, ROOT_MOUNT, ROOTFS, STARTER, STATE_DIRECTORY, Rollback
from gpurun.engine.caller.serve_init import serve_init
from gpurun.engine.clone.init import can_clone_init, clone_init
from gpurun.engine.hook_output import open_outputs
from gpurun.engine.plan.container import STAYS_WRITABLE, Plan
from gpurun.errors import ConfigError, GpurunError, Step, oserror_text
from gpurun.gpu.vendors import given_gpus
from gpurun.launcher.fresh_interpreter import INIT_ENTRY
from gpurun.linux import process as lp
from gpurun.linux import procfs
from gpurun.linux.files import O_CLOEXEC, write_atomically
from gpurun.ns.journal_store import undo_earlier_boots
from gpurun.ns.spawn import open_joins
from gpurun.record import Record, replace, to_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.caller.start_init import Started
    from gpurun.engine.gpus.leases import StoredLease
    from gpurun.ns.namespaces import Join


class Created(Record):
    """A container that waits at its FIFO; *master* is that of its terminal when it is ours to serve, else -1."""

    state: store.State
    plan: Plan
    pidfd: int
    master: int = -1
    placeholder: int = 0  # a process of ours in the scope, for engine.caller.cgroup.release when all is known; 0 for none


def create(options: CreateOptions, started: Started | None) -> Created:
    """Make the container of *options*, up to the point where its init waits for ``start``; *started* makes the init, where
    it has been started already.

    Raises :class:`GpurunError`; then nothing of the container is left.
    """
    rollback = Rollback()
    if started is not None:
        _will_dismiss(started, rollback)
    try:
        store.check_id(options.id)

        def check(plan: Plan) -> None:
            check_rootfs(plan)
            log.warnings(undo_earlier_boots(plan.rootfs))  # before anything of the image is looked at
            _check_console(options, plan)

        own_leases: list[StoredLease] = []
        data, plan = plan_bundle(options, check, started, own_leases)
        if started is None and not can_clone_init(plan):
            from gpurun.engine.caller.start_init import start_child

            started = start_child(INIT_ENTRY, options.preserved)
            _will_dismiss(started, rollback)
        if started is not None and plan.edits_come_first:
            from gpurun.engine.caller.start_init import tell

            tell(started, "edits", to_wire(plan.init.edits), plan.rootfs, plan.init.propagation, plan.init.mount_label)
        plan = with_secret_keyring(with_filter(plan, options.root))
        log.debug(f"planned: rootfs {plan.rootfs}, cgroup {plan.cgroup.path or 'of the caller'}")
        return _Creation(options, plan, started, rollback).apply(data, own_leases)
    except BaseException:
        rollback.take_back(options.id)
        raise


def _will_dismiss(started: Started, rollback: Rollback) -> None:
    from gpurun.engine.caller.start_init import dismiss

    rollback.add(STARTER, lambda: dismiss(started))


class _Creation:
    """A container being made; its methods are the phases of create, called one after the other by :meth:`apply`.

    *started* makes the init; None where it becomes a copy of this process.
    """

    def __init__(self, options: CreateOptions, plan: Plan, started: Started | None, rollback: Rollback) -> None:
        self.options, self.plan, self.started, self.rollback = options, plan, started, rollback
        self.channel = -1 if started is None else started.channel
        self.directory = store.directory(options.root, options.id)

    def apply(self, data: bytes, own_leases: list[StoredLease]) -> Created:
        """Make it; *data* is its config.json, *own_leases* are the leases that it takes over."""
        options = self.options
        state = record(options, self.plan, data, self.rollback)
        journal = self._open_journal()
        if posix.environ.get(b"NOTIFY_SOCKET"):
            posix.mkdir(f"{self.directory}/notify", 0o755)
        fifo = store.fifo_path(options.root, options.id)
        with Step("make the FIFO of start", fifo):
            posix.mkfifo(fifo, 0o600)
        children = (self.started.pid,) if self.started is not None else ()
        placeholder = cgroup.make(self.plan, self.rollback, self.directory, *children)
        if not self.plan.init.mount_namespace:
            self._mount_root()

        ours, its = _console(options, self.plan)
        pid, pidfd, done = self._spawn_init(its, journal)
        if options.detached or not cgroup.keep(self.plan, placeholder):
            cgroup.release(placeholder)
            placeholder = 0
        state = replace(state, pid=pid, start_time=_start_time(pid), keeper=placeholder)
        store.save(options.root, state)
        for one in own_leases:
            from gpurun.engine.gpus.leases import bind

            bind(one, state)
        log.debug(f"the init is process {pid}, in its namespaces and its cgroup")

        serve_init(self.plan, state, self.channel, self.directory, self.rollback)
        master = self._hand_over(ours, pidfd)
        state = replace(state, created=store.rfc3339_now())
        store.save(options.root, state)
        log.debug("the container is created: its process waits for start")
        if options.pid_file:
            store.write_pid_file(options.pid_file, pid)
        posix.close(self.channel)
        for child in done:
            posix.waitpid(child, 0)
        return Created(state, self.plan, pidfd, master, placeholder)

    def _open_journal(self) -> int:
        """Where the init writes down what it makes in the rootfs for devices; -1 without any."""
        if self.plan.init.edits == ContainerEdits():
            return -1
        from gpurun.ns.journal_store import open_journal, undo_traces

        def leave_rootfs_as_it_was() -> None:
            log.warnings(undo_traces(self.options.root, self.options.id))

        self.rollback.add(ROOTFS, leave_rootfs_as_it_was)
        return open_journal(self.options.root, self.options.id, self.plan.rootfs)

    def _mount_root(self) -> None:
        """Mount the rootfs on itself for a container without a mount namespace; the plan becomes what can be done then."""
        from gpurun.ns.own_root import mount_root, unmount_root

        noted = f"{self.directory}/mounted"
        self.rollback.add(ROOT_MOUNT, lambda: unmount_root(noted))
        if mount_root(self.plan.rootfs, noted) or not self.plan.init.readonly:
            return
        log.warning(STAYS_WRITABLE)
        self.plan = replace(self.plan, init=replace(self.plan.init, readonly=False))

    def _spawn_init(self, console: int, journal: int) -> tuple[int, int, tuple[int, ...]]:
        """Have the init made by the starter, and let it go its way: (pid, pidfd, children that are to be reaped)."""
        plan = self.plan
        joins = open_joins(plan.namespaces)
        trees, its_trees = host_resources.source_channel(plan)
        outputs = open_outputs(plan.hook_outputs) if plan.init.create_container or plan.init.start_container else (-1, -1)
        files = {
            # Both ends in one descriptor: the init's read blocks until start writes, and start's open fails if no init is
            # there.
            "fifo": posix.open(store.fifo_path(self.options.root, self.options.id), posix.O_RDWR | O_CLOEXEC),
            "cgroup": manager.open_dir(plan.cgroup.path) if plan.cgroup.path else -1,
            "trees": its_trees,
            "console": console,
            "nodes": host_resources.lend_nodes(plan),
            "journal": journal,
            "hook_stdout": outputs[0],
            "hook_stderr": outputs[1],
            **{f"{join.type} namespace": fd for join, fd in joins},
        }
        files = {name: fd for name, fd in files.items() if fd >= 0}
        if self.started is None:
            done: tuple[int, ...] = ()
            pid = self._clone_init(files, joins)
        else:
            from gpurun.engine.caller.start_init import await_init

            self._send_plan(self.started, files)
            pid, done = await_init(self.started, self.rollback)
        pidfd = lp.pidfd_open(pid)
        host_resources.lend_resctrl(plan, pid, f"{self.directory}/resctrl", self.rollback)
        host_resources.lend_network_devices(plan, pid)
        if trees is not None:
            host_resources.hand_over_sources(plan, trees, pid, joins)
        for fd in files.values():
            posix.close(fd)
        messages.let_go(self.channel)
        return pid, pidfd, done

    def _send_plan(self, started: Started, files: dict[str, int]) -> None:
        """Tell the starter what to make, with the open *files* by their names."""
        plan = self.plan
        first = plan.edits_come_first
        init = replace(plan.init, edits=ContainerEdits()) if first else plan.init
        message = ("plan", init.process.oom_score_adj, to_wire(plan.namespaces), to_wire(init), tuple(files), first)
        try:
            messages.send_files(started.channel, tuple(files.values()), *message)
        except BrokenPipeError:
            messages.hang_up(started.channel)  # it has ended; its last message, if any, says why

    def _clone_init(self, files: dict[str, int], joins: tuple[tuple[Join, int], ...]) -> int:
        """Make the init, a copy of this process, with the open *files* by their names; returns its pid."""
        made: list[int] = []
        self.rollback.add(PROCESSES, lambda: kill_children(made))
        self.channel, its = messages.channel()
        try:
            return clone_init(self.plan, files, joins, its, made.append)
        finally:
            posix.close(its)

    def _hand_over(self, ours: int, pidfd: int) -> int:
        """Give the caller's sockets what they wait for; returns the terminal's master where it is ours to serve, else -1."""
        master = -1
        if ours >= 0:
            from gpurun.engine.terminal import receive_master

            master = receive_master(ours)
        if self.options.pidfd_socket:
            from gpurun.engine.terminal import send_pidfd

            send_pidfd(self.options.pidfd_socket, pidfd, b"standard")
        return master


def with_filter(plan: Plan, root: str) -> Plan:
    """*plan* with its seccomp profile compiled; raises while nothing is made yet."""
    if plan.seccomp is None:
        return plan
    from gpurun.engine.caller.seccomp import make_filter

    process = replace(plan.init.process, seccomp=make_filter(plan.seccomp, root))
    return replace(plan, init=replace(plan.init, process=process))


def with_secret_keyring(plan: Plan) -> Plan:
    """*plan* with a name for its session keyring that cannot be guessed.

    Every process of the keyring's user that knows the name can join it, those of another container among them.
    """
    if not plan.init.session_keyring:
        return plan
    return replace(plan, init=replace(plan.init, session_keyring=f"{plan.init.session_keyring}.{posix.urandom(16).hex()}"))


def check_rootfs(plan: Plan) -> None:
    """Raise :class:`ConfigError` unless the rootfs is a directory."""
    try:
        found = posix.stat(plan.rootfs)
    except OSError as e:
        raise ConfigError("root.path", f"invalid rootfs: {oserror_text(e)}") from None
    if not S_ISDIR(found.st_mode):
        raise ConfigError("root.path", f'invalid rootfs: "{plan.rootfs}" is not a directory')


def _check_console(options: CreateOptions, plan: Plan) -> None:
    """Whether what the caller says of terminals is there and goes together."""
    terminal = plan.init.process.terminal
    if terminal or options.console_socket:
        from gpurun.engine.terminal import check_console

        check_console(terminal, options.detached, options.console_socket)


def record(options: CreateOptions, plan: Plan, data: bytes, rollback: Rollback) -> store.State:
    """Make the state directory and write what is known of the container that is to be; *data* is its config.json."""
    state = store.State(
        options.id,
        plan.bundle,
        plan.rootfs,
        plan.cgroup.path,
        plan.private_pid,
        annotations=plan.annotations,
        unit=plan.cgroup.scope.unit if plan.cgroup.scope is not None else "",
        session_keyring=plan.init.session_keyring,
        manager=plan.cgroup.scope.manager if plan.cgroup.scope is not None else "",
        oom_kills=procfs.oom_kills() if plan.cgroup.scope is not None else -1,
        streams="" if plan.init.process.terminal else store.own_streams(),
        owner=store.user_name(posix.geteuid()),
    )
    directory = store.make_directory(options.root, options.id)
    rollback.add(STATE_DIRECTORY, lambda: store.remove_directory(options.root, options.id))
    store.save(options.root, state)
    write_atomically(f"{directory}/config.json", data, 0o600)
    kept.save_edits(options.root, options.id, plan.init.edits.env, plan.init.edits.additional_gids)
    kept.save_gpus(options.root, options.id, given_gpus((*plan.init.edits.device_nodes, *plan.init.devices)))
    if plan.init.process.seccomp is not None:
        kept.save_seccomp(options.root, options.id, *plan.init.process.seccomp)
    return state


def _console(options: CreateOptions, plan: Plan) -> tuple[int, int]:
    """(our end, the init's end) of the way that the terminal's master takes; -1 where there is none."""
    if not plan.init.process.terminal:
        return -1, -1
    from gpurun.engine.terminal import connect_socket, console_pair

    return (-1, connect_socket(options.console_socket)) if options.console_socket else console_pair()


def _start_time(pid: int) -> int:
    found = procfs.stat(pid)
    if found is None:
        raise GpurunError("the container's init ended at once")
    return found[1]
