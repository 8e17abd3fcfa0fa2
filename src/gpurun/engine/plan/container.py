"""The plan: everything that create, start and delete will do for one container, as plain data.

:func:`make_plan` is pure: the same config, host facts and device edits give the same plan, and nothing is touched.  All bad
input is refused here.
"""

from __future__ import annotations

from gpurun.cdi.edits import ContainerEdits
from gpurun.cgroup.devices import compile_filter, container_rules, describe_rule, emulate
from gpurun.cgroup.resources import CgroupWrite, plan_resources
from gpurun.cgroup.tree import Tree, cgroup_path, join_root, slice_of_unit
from gpurun.engine.hook_output import output_files
from gpurun.engine.plan.process import ProcessHost, plan_process
from gpurun.engine.plan.records import InitPlan, ProcessPlan
from gpurun.engine.state import MAX_ANNOTATIONS, MAX_BYTES
from gpurun.errors import ConfigError
from gpurun.formats.jsontext import dumps
from gpurun.gpu.request.injected import is_replaced_hook
from gpurun.linux.mount import MOUNT_ATTR_RDONLY, MS_PRIVATE, MS_SHARED, MS_SLAVE, MS_UNBINDABLE
from gpurun.linux.process import CLONE_NEWCGROUP, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS
from gpurun.ns.mount_plan import MountStep, dev_is_bind, join_path, plan_devices, plan_mounts
from gpurun.ns.namespaces import NamespacePlan, host_id, plan_namespaces
from gpurun.ns.sysctl import plan_sysctl, sysctl_path
from gpurun.oci.annotations import CRUN_KEEP_GROUPS, CRUN_SECCOMP_UNKNOWN, GPURUN
from gpurun.oci.config import HOOK_NAMES, Config, Hooks, Linux
from gpurun.oci.resources import DeviceRule, Resources
from gpurun.paths import clean_path
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.cdi.edits import MemoryLimit
    from gpurun.cgroup.placement import Placed, Site
    from gpurun.cgroup.scope import Scope
    from gpurun.cgroup.service_manager import UserManager
    from gpurun.engine.plan.resctrl import RdtPlan
    from gpurun.ns.netdev import NetDevice
    from gpurun.security.seccomp import SeccompPlan

#: linux.rootfsPropagation → (MS_* flag, recursive); 0 is what is not asked for: slaves of the host's, but a private root.
ROOTFS_PROPAGATION = {
    "": (0, True),
    "shared": (MS_SHARED, False),
    "rshared": (MS_SHARED, True),
    "slave": (MS_SLAVE, False),
    "rslave": (MS_SLAVE, True),
    "private": (MS_PRIVATE, False),
    "rprivate": (MS_PRIVATE, True),
    "unbindable": (MS_UNBINDABLE, False),
    "runbindable": (MS_UNBINDABLE, True),
}


class Host(Record):
    """What a plan depends on besides the config: facts that were read, not decided."""

    tree: Tree
    own_cgroup: str  # path of our own cgroup below the tree's root
    last_cap: int  # /proc/sys/kernel/cap_last_cap
    hugepage_sizes: tuple[str, ...] | None = None  # as hugetlb's files call them; None when they are not needed
    may_make_cgroups: bool = True  # False only where the config does not say where the cgroup is to be
    user_manager: UserManager | None = None  # who makes the scopes of a caller that is not the host's root
    # The rest is False where the config does not ask for it.
    apparmor: bool = False
    selinux: bool = False
    resctrl: bool = False
    numa: tuple[tuple[int, str], ...] = ()  # NUMA nodes and their CPUs, where an annotation asks to be near a device
    joined_maps: tuple[str, str] | None = None  # uid and gid map of the user namespace to join
    machine: str = ""  # uname -m, where the config has a seccomp profile
    own_namespaces: int = 0  # CLONE_NEW* flags of those to join that are our own, where the config sets a sysctl
    site: Site | None = None  # placement policies of the site, where it has any


#: Of root.readonly, where the container's init may not change the mounts that it is among.
STAYS_WRITABLE = "root.readonly: the rootfs stays writable, for its mount is among those of the host: add a mount namespace"


def _asks_for_nothing(linux: Linux, host: Host) -> bool:
    """Whether the config sets no limit: then a caller that may make no cgroup can do without one, as under runc."""
    resources = linux.resources
    return resources is None or not plan_resources(resources, host.tree.controllers, host.tree.bound_to_v1)


class CgroupPlan(Record):
    """The cgroup's directory, its limits, and who may open which device.

    *rules* say it in words, *program* as eBPF; it is empty when all is allowed.
    """

    path: str
    root: str
    scope: Scope | None  # the systemd unit whose cgroup it is; None when we make the cgroup ourselves
    writes: tuple[CgroupWrite, ...]
    rules: tuple[str, ...]
    program: bytes
    owner: int = 0  # the host's id of who is given the cgroup; 0: it stays ours
    warnings: tuple[str, ...] = ()
    memory_limits: tuple[MemoryLimit, ...] = ()  # of GPUs, that NVML is to set
    notes: tuple[str, ...] = ()  # what the site's policies leave out for this container, and why


class Plan(Record):
    """All of it.  *warnings* are written once, to the log."""

    id: str
    bundle: str
    rootfs: str
    namespaces: NamespacePlan
    cgroup: CgroupPlan
    init: InitPlan
    hooks: Hooks
    annotations: str  # JSON text
    private_pid: bool
    warnings: tuple[str, ...]
    net_devices: tuple[NetDevice, ...] = ()
    intel_rdt: RdtPlan | None = None
    seccomp: SeccompPlan | None = None  # create compiles it into init.process.seccomp
    hook_outputs: tuple[str, str] = ("", "")  # the files that annotations name for the hooks' stdout and stderr

    @property
    def edits_come_first(self) -> bool:
        """Whether the sources of the device edits are opened before there is an init, in the host's mount namespace and
        with the caller's privileges: not for an init that joins another mount namespace, nor for one in a user namespace,
        which is to have no more of a mount than it could make."""
        return bool(self.init.edits.mounts and self.namespaces.new & CLONE_NEWNS) and not self.init.user_namespace


class PlanOptions(Record):
    """What a plan depends on besides the config and the host: what the caller of create says."""

    no_pivot: bool = False
    new_keyring: bool = True
    preserved: tuple[int, ...] = ()  # descriptors of the caller's that the process inherits
    first_env: tuple[str, ...] = ()  # variables only for the container's first process
    cgroup_manager: str = "cgroupfs"


PLAIN = PlanOptions()


def make_plan(
    config: Config, container_id: str, bundle: str, host: Host, edits: ContainerEdits, options: PlanOptions = PLAIN
) -> Plan:
    """The plan of *config* in *bundle* (an absolute path); raises :class:`ConfigError` for what cannot be done."""
    linux = config.linux
    namespaces = plan_namespaces(linux, host.joined_maps)
    _check_contradictions(config, namespaces)
    _check_devices_have_a_place(edits, namespaces)
    if linux.mount_label:
        from gpurun.security.lsm import check_selinux

        check_selinux(linux.mount_label, "linux.mountLabel", host.selinux)
    if not config.root_path:
        raise ConfigError("root.path", "must not be empty")
    rootfs = clean_path(join_path(bundle, config.root_path))
    mounts = plan_mounts(config, bundle, rootfs, namespaces)
    process, warnings = _plan_first_process(config, host, edits, options)
    hooks = _checked_hooks(config.hooks)
    readonly = config.root_readonly and (namespaces.has(CLONE_NEWNS) or not namespaces.has(CLONE_NEWUSER))
    if config.root_readonly and not readonly:  # as `runc spec` writes it; runc says nothing
        warnings += (STAYS_WRITABLE,)
    cgroup = _plan_cgroup(config, container_id, host, edits, options.cgroup_manager)
    cgroup = replace(cgroup, owner=_cgroup_owner(namespaces, mounts, process.uid))
    init = InitPlan(
        id=container_id,
        bundle=bundle,
        rootfs=rootfs,
        mount_namespace=namespaces.has(CLONE_NEWNS),
        user_namespace=namespaces.has(CLONE_NEWUSER),
        new_network=bool(namespaces.new & CLONE_NEWNET),
        propagation=_propagation(linux.rootfs_propagation, options.no_pivot),
        no_pivot=options.no_pivot,
        mounts=mounts,
        devices=plan_devices(linux.devices),
        dev_is_bind=dev_is_bind(mounts),
        edits=edits,
        readonly=readonly,
        hostname=config.hostname,
        domainname=config.domainname,
        sysctl=plan_sysctl(linux.sysctl, namespaces, host.own_namespaces),
        readonly_paths=_absolute_paths(linux.readonly_paths, "linux.readonlyPaths"),
        masked_paths=_absolute_paths(linux.masked_paths, "linux.maskedPaths"),
        process=process,
        parent_hooks=bool(hooks.prestart or hooks.create_runtime),
        create_container=hooks.create_container,
        start_container=hooks.start_container,
        annotations=_annotations(config.annotations),
        cgroup_path=cgroup.path,
        cgroup_view=_cgroup_view(namespaces, cgroup),
        session_keyring=f"_ses.{container_id}" if options.new_keyring else "",
        preserved=options.preserved,
        mount_label=linux.mount_label,
    )
    return Plan(
        id=container_id,
        bundle=bundle,
        rootfs=rootfs,
        namespaces=namespaces,
        cgroup=cgroup,
        init=init,
        hooks=hooks,
        annotations=init.annotations,
        private_pid=bool(namespaces.new & CLONE_NEWPID),
        warnings=warnings + cgroup.warnings + edits.warnings,
        net_devices=_net_devices(linux, namespaces),
        intel_rdt=_intel_rdt(linux, container_id, host),
        seccomp=_seccomp(config, host),
        hook_outputs=output_files(config.annotations) if hooks != Hooks() else ("", ""),
    )


def _check_devices_have_a_place(edits: ContainerEdits, namespaces: NamespacePlan) -> None:
    if (edits.mounts or edits.device_nodes or edits.proc_trees) and not namespaces.has(CLONE_NEWNS):
        raise ConfigError("linux.namespaces", 'a container with GPUs needs a mount namespace: add {"type": "mount"}')


def _plan_first_process(
    config: Config, host: Host, edits: ContainerEdits, options: PlanOptions
) -> tuple[ProcessPlan, tuple[str, ...]]:
    """The plan of the config's process with what devices and the caller add to it, and warnings."""
    process, warnings = plan_process(
        config.process,
        ProcessHost(host.last_cap, host.apparmor, host.selinux),
        groups=edits.additional_gids,
        linux=config.linux,
    )
    if config.annotations.get(CRUN_KEEP_GROUPS) == "1":
        process = replace(process, groups=None)
    return _with_env(process, edits.env + options.first_env), warnings


def _cgroup_owner(namespaces: NamespacePlan, mounts: tuple[MountStep, ...], uid: int) -> int:
    """Who is given the cgroup: the container's user, if it has a cgroup namespace and a mount of it to write to."""
    read_only = MOUNT_ATTR_RDONLY
    writable = any(m.kind == "cgroup" and not (m.options.attr_set | m.options.rec_set) & read_only for m in mounts)
    if not writable or not namespaces.new & CLONE_NEWCGROUP:
        return 0
    return max(host_id(namespaces.uids, uid), 0) if namespaces.uids else uid


def _cgroup_view(namespaces: NamespacePlan, cgroup: CgroupPlan) -> str:
    """In the host's cgroup namespace a new mount of cgroup2 would change the options of the host's own."""
    return "" if namespaces.has(CLONE_NEWCGROUP) else cgroup.root


def _net_devices(linux: Linux, namespaces: NamespacePlan) -> tuple[NetDevice, ...]:
    if not linux.net_devices:
        return ()
    from gpurun.ns.netdev import plan_net_devices

    return plan_net_devices(linux.net_devices, namespaces)


def _intel_rdt(linux: Linux, container_id: str, host: Host) -> RdtPlan | None:
    if linux.intel_rdt is None:
        return None
    from gpurun.engine.plan.resctrl import plan_rdt

    return plan_rdt(linux.intel_rdt, container_id, host.resctrl)


def _seccomp(config: Config, host: Host) -> SeccompPlan | None:
    profile = config.linux.seccomp
    if profile is None:
        return None
    from gpurun.oci.seccomp import read_seccomp
    from gpurun.security.seccomp import plan_seccomp

    plan = plan_seccomp(read_seccomp(profile), host.machine)
    if plan is not None and config.annotations.get(CRUN_SECCOMP_UNKNOWN, "0") != "0":  # as with crun
        return replace(plan, refuse_unknown=True)
    return plan


def _check_contradictions(config: Config, namespaces: NamespacePlan) -> None:
    if config.hostname and not namespaces.has(CLONE_NEWUTS):
        raise ConfigError("hostname", "unable to set hostname without a private UTS namespace")
    if config.domainname and not namespaces.has(CLONE_NEWUTS):
        raise ConfigError("domainname", "unable to set domainname without a private UTS namespace")
    for key, value in config.linux.sysctl.items():
        if config.domainname and sysctl_path(key) == "kernel/domainname" and value != config.domainname:
            raise ConfigError(f"linux.sysctl.{key}", f'contradicts domainname, which is "{config.domainname}"')
    if not namespaces.has(CLONE_NEWNS):
        for paths, name in ((config.linux.masked_paths, "maskedPaths"), (config.linux.readonly_paths, "readonlyPaths")):
            if paths:
                raise ConfigError(f"linux.{name}", "unable to restrict sys entries without a private MNT namespace")


def _propagation(word: str, no_pivot: bool) -> tuple[int, bool]:
    if word not in ROOTFS_PROPAGATION:
        known = ", ".join([w for w in ROOTFS_PROPAGATION if w])
        raise ConfigError("linux.rootfsPropagation", f'"{word}" is unknown, it must be one of {known}')
    if no_pivot and ROOTFS_PROPAGATION[word][0] == MS_PRIVATE:
        raise ConfigError("linux.rootfsPropagation", "rootfsPropagation of [r]private is not safe without pivot_root")
    return ROOTFS_PROPAGATION[word]


def _absolute_paths(paths: tuple[str, ...], json_path: str) -> tuple[str, ...]:
    """The paths, clean and without duplicates, in their order."""
    for i, path in enumerate(paths):
        if not path.startswith("/"):
            raise ConfigError(f"{json_path}[{i}]", f'"{path}" must be an absolute path')
    return tuple(dict.fromkeys([clean_path(p) for p in paths]))


def _checked_hooks(hooks: Hooks) -> Hooks:
    for name, field in zip(HOOK_NAMES, Hooks._fields, strict=True):
        for i, hook in enumerate(getattr(hooks, field)):
            json_path = f"hooks.{name}[{i}]"
            if not hook.path.startswith("/"):
                raise ConfigError(f"{json_path}.path", f'"{hook.path}" must be an absolute path')
            if hook.timeout is not None and hook.timeout <= 0:
                raise ConfigError(f"{json_path}.timeout", f"{hook.timeout} must be greater than zero seconds")
            for k, entry in enumerate(hook.env or ()):
                if "=" not in entry:
                    raise ConfigError(f"{json_path}.env[{k}]", f"missing '=' in \"{entry}\"")
    return replace(hooks, prestart=tuple([hook for hook in hooks.prestart if not is_replaced_hook(hook.path)]))


def _annotations(annotations: dict[str, str]) -> str:
    """The annotations as JSON; they are kept in the state file, which must stay one that can be read."""
    text = dumps(annotations)
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > MAX_ANNOTATIONS:
        limit = f"a container can have {MAX_BYTES >> 20} MiB of them at most"
        raise ConfigError("annotations", f"they take {size >> 20} MiB as JSON, and {limit}")
    return text


def _with_env(process: ProcessPlan, env: tuple[str, ...]) -> ProcessPlan:
    """*process* with the edits' variables, which replace those of the image."""
    if not env:
        return process
    pairs = dict(process.env)
    pairs.update([(e.partition("=")[0], e.partition("=")[2]) for e in env])
    return replace(process, env=tuple(pairs.items()))


def _place(config: Config, host: Host, edits: ContainerEdits, writes: tuple[CgroupWrite, ...]) -> Placed | None:
    """What placement policies add to *writes*; None where none is asked for."""
    if host.site is None and not any(key.startswith(GPURUN) for key in config.annotations):
        return None
    from gpurun.cgroup.placement import Asked, Site, Topology, place, read_policies
    from gpurun.gpu.nvidia.request import restore

    restore.gpus_policy(config.annotations, restore.RestorePolicy())  # read at restore, and refused where it is written
    asked = Asked(writes, edits.numa_nodes, Topology(host.numa))
    return place(read_policies(config.annotations, host.site or Site()), asked, host.tree)


def _plan_cgroup(config: Config, container_id: str, host: Host, edits: ContainerEdits, driver: str) -> CgroupPlan:
    linux, limits = config.linux, edits.memory_limits
    if driver == "disabled" or (not host.may_make_cgroups and not linux.cgroups_path and _asks_for_nothing(linux, host)):
        if limits:
            raise ConfigError(limits[0].where, "a limit of a GPU's memory holds for a cgroup, and the container has none")
        return CgroupPlan(path="", root=host.tree.root, scope=None, writes=(), rules=(), program=b"")
    resources = linux.resources or Resources()
    rules = resources.devices + tuple(
        [
            DeviceRule(True, node.type, node.major, node.minor, node.permissions)
            for node in edits.device_nodes
            if node.type in ("c", "b") and node.permissions
        ]
        + [DeviceRule(True, group.type, group.major, None, group.permissions) for group in edits.device_classes]
    )
    rules = container_rules(rules, tuple([device.path for device in linux.devices]))
    devices = emulate(rules)
    tree = host.tree
    writes = plan_resources(resources, tree.controllers, tree.bound_to_v1, host.hugepage_sizes, hint=tree.hint)
    if limits:
        from gpurun.engine.plan.gpu_memory import plan_gpu_memory

        writes += plan_gpu_memory(limits, tree)
    placed = _place(config, host, edits, writes)
    if placed is not None:
        writes += placed.writes
    scope = None
    warnings = placed.warnings if placed is not None else ()
    if driver == "systemd":
        from gpurun.cgroup.scope import as_systemd_rounds, plan_scope, scope_path

        writes = as_systemd_rounds(writes)
        scope = plan_scope(linux.cgroups_path, container_id, config.annotations, writes, devices, host.user_manager)
        path = join_root(host.tree.root, scope_path(scope))
    else:
        path = cgroup_path(host.tree, linux.cgroups_path, container_id, host.own_cgroup)
        if writes and not linux.cgroups_path.startswith("/") and (above := slice_of_unit(host.own_cgroup)):
            warnings += (f"limits can be lost: the cgroup is made in {above}, which is systemd's: use --systemd-cgroup",)
    return CgroupPlan(
        path=path,
        root=host.tree.root,
        scope=scope,
        writes=writes,
        memory_limits=tuple([limit for limit in limits if limit.library]),
        warnings=warnings,
        notes=placed.notes if placed is not None else (),
        rules=tuple([("allow " if rule.allow else "deny ") + describe_rule(rule) for rule in rules]),
        program=b"" if devices.enforces_nothing() else compile_filter(devices),
    )
