"""What a container will be, before anything of it is made: the bundle, the facts of this host, and the plan of both."""

from __future__ import annotations

import posix
from _stat import S_ISFIFO

from gpurun.cachefile import directory_of
from gpurun.cdi.edits import ContainerEdits
from gpurun.cgroup import tree
from gpurun.document_cache import keep_documents
from gpurun.engine.caller.preserved import listen_fds
from gpurun.engine.gpus.device_edits import device_edits, injected_devices, own_environment
from gpurun.engine.plan.container import Host, Plan, PlanOptions, make_plan
from gpurun.engine.site_config import read_site, site_path
from gpurun.errors import ConfigError, StepError
from gpurun.gpu.request.injected import has_gpus
from gpurun.gpu.resolve import may_ask, may_share
from gpurun.gpu.vendors import VENDORS, given_gpus
from gpurun.linux import procfs
from gpurun.linux.files import read_file
from gpurun.ns.namespaces import NAMESPACES
from gpurun.oci.annotations import GPU
from gpurun.oci.config import Config, Linux, read_config
from gpurun.oci.reader import MAX_DOCUMENT
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpurun.engine.caller.start_init import Started
    from gpurun.engine.gpus.leases import StoredLease
    from gpurun.engine.gpus.shares import Sharing
    from gpurun.gpu.request.free import FreeRequest


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
    preserved: tuple[int, ...] = ()  # descriptors of the caller's that the process inherits
    cgroup_manager: str = "cgroupfs"  # or "systemd", or "disabled": the container stays in the caller's cgroup
    rootless: str = "auto"  # as given: whether root of a user namespace is a user with a service manager of their own


def read_bundle(bundle: str, config: str = "") -> tuple[bytes, Config]:
    """The text and the records of the bundle's config.json; raises :class:`ConfigError`.  Returns (text, records)."""
    path = config if config.startswith("/") else f"{bundle}/{config or 'config.json'}"
    try:
        data = read_document(path, named=bool(config))
    except FileNotFoundError:
        name = config or "config.json"
        raise ConfigError("", f"JSON specification file {name} not found in {bundle}") from None
    except OSError as e:
        raise StepError("read", path, e.errno) from None
    return data, read_config(data)


def read_document(path: str, named: bool) -> bytes:
    """The text of the config.json *path*, which the caller has *named*, or which is just the one of the bundle.

    Raises OSError where it cannot be read, :class:`ConfigError` for another kind of file.
    """
    # A FIFO would hold us for ever; who names a file (--config /dev/stdin) may well mean one.
    if not named and S_ISFIFO(posix.stat(path).st_mode):
        raise ConfigError(path, "is a FIFO and not a file")
    data = read_file(path, MAX_DOCUMENT + 1)
    if len(data) > MAX_DOCUMENT:
        raise ConfigError(path, f"is larger than {MAX_DOCUMENT >> 20} MiB")
    return data


def _may_make_cgroups(found: tree.Tree, own: str) -> bool:
    """Whether the caller may make a cgroup beside its own and move a process from there into it (cgroups(7), delegation)."""
    if own.startswith("/.."):
        return False  # it is in none of those that its cgroup namespace shows
    parent = tree.cgroup_path(found, "", "x", own).rpartition("/")[0]
    return posix.access(parent, posix.W_OK) and posix.access(f"{parent}/cgroup.procs", posix.W_OK)


def read_host(
    config: Config, cgroup_manager: str = "cgroupfs", rootless: str = "auto", environ: Mapping[bytes, bytes] = posix.environ
) -> Host:
    """The facts of this host that the plan for *config* depends on; *environ* may name the site's file."""
    process, linux = config.process, config.linux
    sizes = tree.hugepage_sizes() if linux.resources is not None and linux.resources.hugepage_limits else None
    facts = Host(tree.find_tree(), tree.own_cgroup(), int(read_file("/proc/sys/kernel/cap_last_cap", 16)), sizes)
    facts = _with_cgroup_rights(facts, config, cgroup_manager, rootless)
    if process.apparmor_profile or process.selinux_label or linux.mount_label:
        from gpurun.security.lsm import apparmor_enabled, selinux_enabled

        facts = replace(facts, apparmor=apparmor_enabled(), selinux=selinux_enabled())
    if linux.intel_rdt is not None:
        from gpurun.engine.caller.resctrl import resctrl_mounted

        facts = replace(facts, resctrl=resctrl_mounted())
    facts = _with_namespaces(facts, linux)
    facts = replace(facts, site=read_site(site_path(environ)))
    if facts.site is not None or any(key.startswith(GPU) for key in config.annotations):
        facts = replace(facts, numa=tree.numa_nodes())
    if linux.seccomp is not None:
        facts = replace(facts, machine=posix.uname().machine)
    return facts


def _with_cgroup_rights(facts: Host, config: Config, cgroup_manager: str, rootless: str) -> Host:
    """*facts* and where this caller may make a cgroup: by the user's service manager, or in the tree itself."""
    if cgroup_manager == "systemd":
        from gpurun.cgroup.service_manager import NOT_DELEGATED, wants_user_manager

        if wants_user_manager(rootless, posix.geteuid(), procfs.in_user_namespace):
            from gpurun.cgroup.systemd import find_user_manager

            user = find_user_manager(facts.tree.root)
            found = replace(facts.tree, controllers=user.controllers, hint=NOT_DELEGATED)
            return replace(facts, tree=found, user_manager=user)
    elif not config.linux.cgroups_path and (posix.geteuid() != 0 or procfs.in_user_namespace()):
        # The config does not name a place, and root of a user namespace may have no more rights than any other user.
        return replace(facts, may_make_cgroups=_may_make_cgroups(facts.tree, facts.own_cgroup))
    return facts


def _with_namespaces(facts: Host, linux: Linux) -> Host:
    """*facts* and the namespaces that are joined by path: the maps of a user namespace; for sysctls, which are our own."""
    for i, namespace in enumerate(linux.namespaces):
        if not namespace.path:
            continue
        if namespace.type == "user":
            from gpurun.ns.idmap import read_maps

            facts = replace(facts, joined_maps=read_maps(namespace.path, f"linux.namespaces[{i}].path"))
        if linux.sysctl and namespace.type in NAMESPACES:
            flag, name = NAMESPACES[namespace.type]
            if _same_file(namespace.path, f"/proc/self/ns/{name}"):
                facts = replace(facts, own_namespaces=facts.own_namespaces | flag)
    return facts


def _same_file(one: str, other: str) -> bool:
    try:
        a, b = posix.stat(one), posix.stat(other)
    except OSError:
        return False  # opening it, later, says why
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def plan_bundle(
    options: CreateOptions,
    check: Callable[[Plan], None] | None = None,
    started: Started | None = None,
    own_leases: list[StoredLease] | None = None,
) -> tuple[bytes, Plan]:
    """Read everything and plan; touches nothing.

    Only with *check*, which raises for a plan that cannot be carried out, may the host's missing device nodes be made on the
    way: when the plan, as far as it is known without them, has passed.  *started*, which waits for the plan, gets the order
    to import meanwhile what a container with devices needs.  GPUs that are leased to the container are added to
    *own_leases*.
    Returns (text of the config, plan).
    """
    data, config = read_bundle(options.bundle, options.config)
    if started is not None and (may_ask(config.process.env) or _has_gpus(config)):
        from gpurun.engine.caller.start_init import tell

        tell(started, "devices")

    if check is None or own_leases is None:
        return plan_config(options, data, config)
    return plan_checked(options, data, config, check, own_leases)


def _has_gpus(config: Config) -> bool:
    injected = injected_devices(config)
    return any(has_gpus(injected, vendor) for vendor in VENDORS)


def plan_checked(
    options: CreateOptions,
    data: bytes,
    config: Config,
    check: Callable[[Plan], None],
    own_leases: list[StoredLease],
    had: frozenset[str] = frozenset(),
) -> tuple[bytes, Plan]:
    """:func:`plan_bundle` for *config*, whose text is *data*, with *check* and *own_leases*.

    *had* are the names of the GPUs that a restored container had: of free ones it gets these before others.  Returns (text
    of the config, plan).
    """
    keep_documents(options.root)
    sharing: Sharing | None = None
    if may_share(config.process.env, config.annotations):
        from gpurun.engine.gpus.shares import sharing_of

        sharing = sharing_of(config, options.id, options.root, own_environment(), note=True)

    def allocate(request: FreeRequest) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if sharing is not None:
            return sharing.free(request)
        from gpurun.engine.gpus import leases

        names, made = leases.grant(request, own_environment(), config, options.id, options.root, had)
        own_leases.append(made)
        return names, ()

    def check_edits(edits: ContainerEdits) -> None:
        check(_plan_with(edits, options, data, config)[1])

    sharer = sharing.give if sharing is not None else None
    edits = device_edits(config, check_edits, directory_of(options.root, "gpus"), allocate=allocate, sharer=sharer)
    planned = _plan_with(edits, options, data, config)
    check(planned[1])
    if sharing is not None:
        own_leases += sharing.own_leases
        sharing.start()
    init = planned[1].init
    given = given_gpus((*init.edits.device_nodes, *init.devices))
    if own_leases == [] and given and posix.access(site_path(posix.environ), posix.F_OK):
        from gpurun.engine.gpus.leases import record_named_gpus

        return planned[0], record_named_gpus(planned[1], config, options.root, own_environment(), own_leases)
    return planned


def plan_config(
    options: CreateOptions, data: bytes, config: Config, environ: Mapping[bytes, bytes] = posix.environ
) -> tuple[bytes, Plan]:
    """:func:`plan_bundle` for *config*, whose text is *data*, with *environ* as gpurun's own; touches nothing.

    Returns (text of the config, plan).
    """
    return _plan_with(device_edits(config, environ=environ), options, data, config, environ)


def plan_saved(options: CreateOptions, data: bytes) -> Plan:
    """The plan of a container's own config.json *data*, without what its devices have brought: that is not kept, and this
    host's driver may be another one by now.  Touches nothing."""
    return _plan_with(ContainerEdits(), options, data, read_config(data))[1]


def _plan_with(
    edits: ContainerEdits,
    options: CreateOptions,
    data: bytes,
    config: Config,
    environ: Mapping[bytes, bytes] = posix.environ,
) -> tuple[bytes, Plan]:
    """The config to be saved and the plan, for a container that gets *edits*."""
    sockets = listen_fds(environ)
    if edits != ContainerEdits():
        from gpurun.engine.plan.merged_edits import merge_into_config, saved_config

        data = saved_config(data, edits)
        config, edits = merge_into_config(config, edits)
    first_env: tuple[str, ...] = (f"LISTEN_FDS={sockets}", "LISTEN_PID=1") if sockets else ()
    if environ.get(b"NOTIFY_SOCKET"):
        from gpurun.engine.caller.notify import NOTIFY_ENV, with_notify

        edits = with_notify(edits, f"{options.root}/{options.id}")
        first_env += NOTIFY_ENV
    plan = make_plan(
        config,
        options.id,
        options.bundle,
        read_host(config, options.cgroup_manager, options.rootless, environ),
        edits,
        PlanOptions(options.no_pivot, options.new_keyring, options.preserved, first_env, options.cgroup_manager),
    )
    return data, plan
