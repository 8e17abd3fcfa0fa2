"""create: the parent's side.  Read, plan, and carry the plan out, undoing everything when a step fails.

What outlives the process is recorded before it is made: the state directory names the cgroup before there is one, so a
create that is killed at any moment leaves what ``delete --force`` can remove.
"""

from __future__ import annotations

import posix

from gpurun import log
from gpurun.cgroup import manager, tree
from gpurun.engine import cgroup, place, sync
from gpurun.engine import state as store
from gpurun.engine.child import await_init, dismiss, edits_come_first, listen_fds, tell
from gpurun.engine.plan import Host, Plan, make_plan
from gpurun.engine.serve import serve_init
from gpurun.engine.site import read_site, site_path
from gpurun.errors import ConfigError, GpurunError, StepError, oserror_text
from gpurun.hook.edits import ContainerEdits
from gpurun.hook.gpu import Injected, gpu_edits, has_gpus, may_ask, node_minors
from gpurun.linux import proc
from gpurun.linux import process as lp
from gpurun.linux.files import O_CLOEXEC, read_file
from gpurun.ns.spawn import open_joins
from gpurun.oci.config import Config, read_config
from gpurun.record import Record, replace, to_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.engine.child import Started


class CreateOptions(Record):
    """What the command line says: *pid_file* and *bundle* are absolute."""

    id: str
    root: str
    bundle: str
    pid_file: str = ""
    no_pivot: bool = False
    new_keyring: bool = True
    config: str = ""  # another name for config.json
    detached: bool = True
    console_socket: str = ""
    pidfd_socket: str = ""
    preserve_fds: int = 0
    cgroup_manager: str = "cgroupfs"  # or "systemd", or "disabled": the container stays in the caller's cgroup
    rootless: str = "auto"  # as given: whether root of a user namespace is a user with a service manager of their own


class Created(Record):
    """A container that waits at its FIFO; *master* is that of its terminal when it is ours to serve, else -1."""

    state: store.State
    plan: Plan
    pidfd: int
    master: int = -1
    keeper: int = 0  # a process of ours in the container's scope, for engine.cgroup.release when all is known; 0 for none


def read_bundle(bundle: str, config: str = "") -> tuple[bytes, Config]:
    """The text and the records of the bundle's config.json; raises :class:`ConfigError`."""
    path = config if config.startswith("/") else f"{bundle}/{config or 'config.json'}"
    try:
        data = read_file(path, 64 << 20)
    except FileNotFoundError:
        name = config or "config.json"
        raise ConfigError("", f"JSON specification file {name} not found in {bundle}") from None
    except OSError as e:
        raise StepError("read", path, e.errno) from None
    return data, read_config(data)


def read_host(config: Config, cgroup_manager: str = "cgroupfs", rootless: str = "auto") -> Host:
    """The facts of this host that the plan for *config* depends on."""
    found = tree.find_tree()
    resources = config.linux.resources
    sizes = tree.hugepage_sizes() if resources is not None and resources.hugepage_limits else None
    facts = Host(found, tree.own_cgroup(), int(read_file("/proc/sys/kernel/cap_last_cap", 16)), sizes)
    if cgroup_manager == "systemd":
        from gpurun.cgroup.service_manager import NOT_DELEGATED, wants_user_manager

        if wants_user_manager(rootless, posix.geteuid(), proc.in_user_namespace):
            from gpurun.cgroup.systemd import find_user_manager

            user = find_user_manager(found.root)
            found = replace(found, controllers=user.controllers, bound_to_v1=(), hint=NOT_DELEGATED)
            facts = replace(facts, tree=found, user_manager=user)
    elif posix.geteuid() != 0:
        parent = tree.cgroup_path(found, config.linux.cgroups_path, "x", facts.own_cgroup).rpartition("/")[0]
        facts = replace(facts, may_make_cgroups=posix.access(parent, posix.W_OK))
    process, linux = config.process, config.linux
    if process.apparmor_profile or process.selinux_label or linux.mount_label:
        from gpurun.security.lsm import apparmor_enabled, selinux_enabled

        facts = replace(facts, apparmor=apparmor_enabled(), selinux=selinux_enabled())
    if linux.intel_rdt is not None:
        from gpurun.engine.rdt import resctrl_mounted

        facts = replace(facts, resctrl=resctrl_mounted())
    for i, namespace in enumerate(linux.namespaces):
        if namespace.type == "user" and namespace.path:
            from gpurun.ns.idmap import read_maps

            facts = replace(facts, joined_maps=read_maps(namespace.path, f"linux.namespaces[{i}].path"))
    facts = replace(facts, site=read_site(site_path(posix.environ)))
    if facts.site is not None or any(key.startswith("dev.gpurun.gpu.") for key in config.annotations):
        facts = replace(facts, numa=tree.numa_nodes())
    if linux.seccomp is not None:
        facts = replace(facts, machine=posix.uname().machine)
    return facts


def device_edits(config: Config, prepare: bool = False, cache: str = "") -> ContainerEdits:
    """What the devices that the config asks for add to the container; with *prepare* the host's missing nodes are made.

    *cache* is a directory in which answers are kept.
    """
    capabilities = config.process.capabilities
    privileged = capabilities is not None and "CAP_SYS_ADMIN" in capabilities.bounding
    own_env = {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape") for k, v in posix.environ.items()}
    mounts = tuple([(mount.source, mount.destination) for mount in config.mounts])
    process = config.process
    edits = gpu_edits(
        process.env,
        config.annotations,
        privileged,
        own_env,
        mounts=mounts,
        injected=injected_devices(config),
        prepare=prepare,
        cache=cache,
    )
    return edits or ContainerEdits()


def injected_devices(config: Config) -> Injected:
    """What in *config* may be an engine's own doing for devices."""
    linux = config.linux
    rules = linux.resources.devices if linux.resources is not None else ()
    private = any(namespace.type == "mount" for namespace in linux.namespaces)
    return Injected(config.hooks.create_container, config.mounts, linux.devices, rules, private)


def plan_bundle(options: CreateOptions, prepare: bool = False, started: Started | None = None) -> tuple[bytes, Plan]:
    """Read everything and plan; touches nothing but, with *prepare*, nodes of devices that the host should have.

    *started*, which waits for the plan, is told to import meanwhile what a container with devices needs.
    """
    data, config = read_bundle(options.bundle, options.config)
    if started is not None and (may_ask(config.process.env) or has_gpus(injected_devices(config))):
        tell(started, "devices")
    sockets = listen_fds()
    edits = device_edits(config, prepare, f"{options.root}/.gpus" if prepare else "")
    if edits != ContainerEdits():
        from gpurun.engine.edited import edited, saved_config

        data = saved_config(data, edits)
        config, edits = edited(config, edits)
    first_env: tuple[str, ...] = (f"LISTEN_FDS={sockets}", "LISTEN_PID=1") if sockets else ()
    if posix.environ.get(b"NOTIFY_SOCKET"):
        from gpurun.engine.notify import NOTIFY_ENV, with_notify

        edits = with_notify(edits, f"{options.root}/{options.id}")
        first_env += NOTIFY_ENV
    plan = make_plan(
        config,
        options.id,
        options.bundle,
        read_host(config, options.cgroup_manager, options.rootless),
        edits,
        options.no_pivot,
        options.new_keyring,
        options.preserve_fds + sockets,
        first_env,
        options.cgroup_manager,
    )
    return data, plan


def create(options: CreateOptions, started: Started) -> Created:
    """Make the container of *options*, up to the point where its init waits for ``start``; *started* makes the init.

    Raises :class:`GpurunError`; then nothing of the container is left.
    """
    undo: list[Callable[[], None]] = []
    try:
        store.check_id(options.id)
        data, plan = plan_bundle(options, prepare=True, started=started)
        if edits_come_first(plan):
            tell(started, "edits", to_wire(plan.init.edits))
        check_rootfs(plan)
        _check_console(options, plan)
        plan = with_filter(plan, options.root)
        log.debug(f"planned: rootfs {plan.rootfs}, cgroup {plan.cgroup.path or 'of the caller'}")
        return _apply(options, plan, data, started, undo)
    except BaseException:
        take_back([*undo, lambda: dismiss(started)])
        raise


def take_back(undo: list[Callable[[], None]]) -> None:
    """Take the steps of *undo*, the last one first.

    The first error is the one to tell; what could not be undone is left for delete --force.
    """
    for step in reversed(undo):
        try:
            step()
        except (OSError, GpurunError) as e:
            log.warning(f"while undoing what create had made: {e}")


def with_filter(plan: Plan, root: str) -> Plan:
    """*plan* with its seccomp profile compiled; raises while nothing is made yet."""
    if plan.seccomp is None:
        return plan
    from gpurun.engine.seccomp import make_filter

    process = replace(plan.init.process, seccomp=make_filter(plan.seccomp, root))
    return replace(plan, init=replace(plan.init, process=process))


def check_rootfs(plan: Plan) -> None:
    """Raise :class:`ConfigError` unless the rootfs is a directory."""
    try:
        found = posix.stat(plan.rootfs)
    except OSError as e:
        raise ConfigError("root.path", f"invalid rootfs: {oserror_text(e)}") from None
    if found.st_mode & 0o170000 != 0o040000:
        raise ConfigError("root.path", f'invalid rootfs: "{plan.rootfs}" is not a directory')


def _check_console(options: CreateOptions, plan: Plan) -> None:
    """Whether what the caller says of terminals is there and goes together."""
    terminal = plan.init.process.terminal
    if terminal or options.console_socket:
        from gpurun.engine.terminal import check_console

        check_console(terminal, options.detached, options.console_socket)


def record(options: CreateOptions, plan: Plan, data: bytes, undo: list[Callable[[], None]]) -> store.State:
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
        oom_kills=proc.oom_kills() if plan.cgroup.scope is not None else -1,
        streams="" if plan.init.process.terminal else store.own_streams(),
    )
    directory = store.make_directory(options.root, options.id)
    undo.append(lambda: store.remove_directory(options.root, options.id))
    store.save(options.root, state)
    store.write_atomically(f"{directory}/config.json", data, 0o600)
    store.save_edits(options.root, options.id, plan.init.edits.env, plan.init.edits.additional_gids)
    store.save_gpus(options.root, options.id, node_minors((*plan.init.edits.device_nodes, *plan.init.devices)))
    if plan.init.process.seccomp is not None:
        store.save_seccomp(options.root, options.id, *plan.init.process.seccomp)
    return state


def _apply(options: CreateOptions, plan: Plan, data: bytes, started: Started, undo: list[Callable[[], None]]) -> Created:
    state = record(options, plan, data, undo)
    journal = _journal(options, plan, undo)
    directory = store.directory(options.root, options.id)
    if posix.environ.get(b"NOTIFY_SOCKET"):
        posix.mkdir(f"{directory}/notify", 0o755)
    fifo = store.fifo_path(options.root, options.id)
    posix.mkfifo(fifo, 0o600)
    placeholder = cgroup.make(plan, undo, f"{directory}/exclusive", started.pid)

    ours, its = _console(options, plan)
    pid, pidfd, done = _spawn_init(plan, started, fifo, its, journal, undo)
    if options.detached or not cgroup.keep(plan, placeholder):
        cgroup.release(placeholder)
        placeholder = 0
    state = replace(state, pid=pid, start_time=_start_time(pid), keeper=placeholder)
    store.save(options.root, state)
    log.debug(f"the init is process {pid}, in its namespaces and its cgroup")
    serve_init(plan, state, started.channel, f"{directory}/exclusive", undo)
    master = -1
    if ours >= 0:
        from gpurun.engine.terminal import receive_master

        master = receive_master(ours)
    if options.pidfd_socket:
        from gpurun.engine.terminal import send_pidfd

        send_pidfd(options.pidfd_socket, pidfd, b"standard")
    state = replace(state, created=store.rfc3339_now())
    store.save(options.root, state)
    log.debug("the container is created: its process waits for start")
    if options.pid_file:
        store.write_pid_file(options.pid_file, pid)
    posix.close(started.channel)
    for child in done:
        posix.waitpid(child, 0)
    return Created(state, plan, pidfd, master, placeholder)


def _console(options: CreateOptions, plan: Plan) -> tuple[int, int]:
    """(our end, the init's end) of the way that the terminal's master takes; -1 where there is none."""
    if not plan.init.process.terminal:
        return -1, -1
    from gpurun.engine.terminal import connect_socket, console_pair

    return (-1, connect_socket(options.console_socket)) if options.console_socket else console_pair()


def _start_time(pid: int) -> int:
    found = proc.stat(pid)
    if found is None:
        raise GpurunError("the container's init ended at once")
    return found[1]


def _journal(options: CreateOptions, plan: Plan, undo: list[Callable[[], None]]) -> int:
    """Where the init writes down what it makes in the rootfs for devices; -1 without any."""
    if plan.init.edits == ContainerEdits():
        return -1
    from gpurun.ns.traces import open_journal, undo_traces

    def leave_rootfs_as_it_was() -> None:
        for warning in undo_traces(options.root, options.id):
            log.warning(warning)

    undo.append(leave_rootfs_as_it_was)
    return open_journal(options.root, options.id, plan.rootfs)


def _spawn_init(
    plan: Plan, started: Started, fifo: str, console: int, journal: int, undo: list[Callable[[], None]]
) -> tuple[int, int, tuple[int, ...]]:
    """Have the init made by *started*, and let it go its way; returns (pid, pidfd, children that are to be reaped)."""
    joins = open_joins(plan.namespaces)
    trees, its_trees = place.source_channel(plan)
    files = {
        # Both ends in one descriptor: the init's read blocks until start writes, and start's open fails if no init is there.
        "fifo": posix.open(fifo, posix.O_RDWR | O_CLOEXEC),
        "cgroup": manager.open_dir(plan.cgroup.path) if plan.cgroup.path else -1,
        "trees": its_trees,
        "console": console,
        "nodes": place.lend_nodes(plan),
        "journal": journal,
        **{f"{join.type} namespace": fd for join, fd in joins},
    }
    files = {name: fd for name, fd in files.items() if fd >= 0}
    first = edits_come_first(plan)
    init = replace(plan.init, edits=ContainerEdits()) if first else plan.init
    message = ("plan", to_wire(plan.namespaces), to_wire(init), tuple(files), first)
    try:
        sync.send_files(started.channel, tuple(files.values()), *message)
    except BrokenPipeError:
        pass  # it has ended; its last message, if any, says why
    pid, done = await_init(started, undo)
    pidfd = lp.pidfd_open(pid)
    place.lend(plan, pid, f"{fifo.rpartition('/')[0]}/resctrl", undo)
    if trees is not None:
        place.hand_over_sources(plan, trees, pid, joins)
    for fd in files.values():
        posix.close(fd)
    sync.send(started.channel, "go")
    return pid, pidfd, done
