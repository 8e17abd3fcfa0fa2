"""The plan in words: what ``explain`` prints for people, and :meth:`gpurun.Bundle.explain` gives as data."""

from __future__ import annotations

from gpurun.cdi.edits import ContainerEdits
from gpurun.cgroup.scope import Scope
from gpurun.decimals import decimal
from gpurun.engine.plan.container import Plan
from gpurun.engine.plan.process import RLIMITS
from gpurun.gpu.explain import limit_text
from gpurun.gpu.host.access import is_confined
from gpurun.gpu.nvidia.host.device_numbers import device_name
from gpurun.linux import mount as lm
from gpurun.linux.process import CAP_SYS_ADMIN, has_capabilities
from gpurun.ns.mount_plan import MountStep
from gpurun.ns.namespaces import NAMESPACES
from gpurun.ns.options import MountOptions
from gpurun.oci.config import HOOK_NAMES, Hooks
from gpurun.record import to_plain
from gpurun.security.capabilities import NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ATTRIBUTES = (
    (lm.MOUNT_ATTR_RDONLY, "ro"),
    (lm.MOUNT_ATTR_NOSUID, "nosuid"),
    (lm.MOUNT_ATTR_NODEV, "nodev"),
    (lm.MOUNT_ATTR_NOEXEC, "noexec"),
    (lm.MOUNT_ATTR_NOATIME, "noatime"),
    (lm.MOUNT_ATTR_STRICTATIME, "strictatime"),
    (lm.MOUNT_ATTR_NODIRATIME, "nodiratime"),
    (lm.MOUNT_ATTR_NOSYMFOLLOW, "nosymfollow"),
)
_PROPAGATION = {lm.MS_SHARED: "shared", lm.MS_SLAVE: "slave", lm.MS_PRIVATE: "private", lm.MS_UNBINDABLE: "unbindable"}


def explain_plan(plan: Plan) -> list[str]:
    """The lines about *plan*, in the order in which it is carried out, with what the config says as it is: not escaped."""
    lines: list[str] = []
    for title, items in sections(plan).items():
        lines += [title, *[f"  {item}" for item in items]]
    return lines


def plain_plan(plan: Plan) -> dict[str, Any]:
    """*plan* as what JSON has, with words where the kernel has numbers: namespaces, capabilities, mount attributes."""
    found: dict[str, Any] = to_plain(plan)
    spaces, init = found["namespaces"], found["init"]
    spaces["new"] = [name for name, (flag, _) in NAMESPACES.items() if plan.namespaces.new & flag]
    for join in spaces["joins"]:
        del join["flag"]
    init["propagation"] = _propagation(plan)
    for shown, step in zip(init["mounts"], plan.init.mounts, strict=True):
        shown["options"] = _options(step.options).split(",") if _options(step.options) else []
    capabilities = plan.init.process.capabilities
    if capabilities is not None:
        init["process"]["capabilities"] = {
            field: _capabilities(getattr(capabilities, field)) for field in type(capabilities)._fields
        }
    return found


def sections(plan: Plan) -> dict[str, list[str]]:
    """*plan* in words: title → lines, in the order in which it is carried out; a title without lines is left out."""
    found = {f"container {plan.id} from bundle {plan.bundle}": [f"rootfs {plan.rootfs}"]}
    found["warnings"] = list(plan.warnings)
    found["namespaces"] = _namespaces(plan)
    found["cgroup"] = [
        plan.cgroup.path,
        *[f"{w.file} = {w.value}   ({w.where})" for w in plan.cgroup.writes],
        *plan.cgroup.notes,
    ]
    if plan.cgroup.scope is not None:
        found[f"systemd unit {plan.cgroup.scope.unit}"] = _unit(plan.cgroup.scope)
    if not plan.cgroup.path:
        found["cgroup"][0] = "none of its own: no limit of linux.resources applies, and nothing is measured"
    rules = _rules(plan)
    unfiltered = _why_no_filter(plan)
    if unfiltered:
        rules.append(f"({unfiltered})")
    found["devices that may be used, later rules win"] = rules
    found["mounts"] = [
        f"{m.destination}  {m.kind} {m.source}  {_options(m.options)}".rstrip() + _idmap_text(m) for m in plan.init.mounts
    ]
    nodes = [f"{d.path}  {d.type} {d.major}:{d.minor} {d.mode:04o} {d.uid}:{d.gid}" for d in plan.init.devices]
    found["device nodes"] = ["(none: /dev is bound)"] if plan.init.dev_is_bind else nodes
    found.update(_edits(plan.init.edits))
    found["lent by the host"] = _lent(plan)
    found["hooks"] = _hooks(plan.hooks)
    found["root file system"] = _rootfs(plan)
    found["sysctl"] = [f"{path.replace('/', '.')} = {value}" for path, value in plan.init.sysctl]
    found["read-only paths"] = list(plan.init.readonly_paths)
    found["masked paths"] = list(plan.init.masked_paths)
    found["process"] = _process(plan)
    found["seccomp"] = _seccomp(plan)
    return {title: items for title, items in found.items() if items}


def _why_no_filter(plan: Plan) -> str:
    """Why no device program filters what the container opens, and what decides then; "" where one does."""
    if not plan.cgroup.path:
        return (
            "all devices are allowed, those of other GPUs too: the program belongs to a cgroup, and this container has none "
            "of its own; only permissions and CAP_MKNOD decide which nodes it can reach or make"
        )
    if not plan.cgroup.program:
        return "all devices are allowed: no program is attached"
    if is_confined() or not has_capabilities(CAP_SYS_ADMIN):
        return (
            "not enforced: the kernel accepts device programs only from the host's root; the container can make no nodes, "
            "and the permissions of those that it is given decide"
        )
    return ""


def _rules(plan: Plan) -> list[str]:
    """The device rules, with the device that each is for."""
    edits, named = plan.init.edits, dict[tuple[str, str], str]()
    for device in plan.init.devices:
        named[device.type.replace("u", "c"), f"{device.major}:{device.minor}"] = device.path
    for node in edits.device_nodes:
        named[node.type.replace("u", "c"), f"{node.major}:{node.minor}"] = f"{node.path}: {node.reason}".rstrip(": ")
    for group in edits.device_classes:
        named[group.type, f"{group.major}:*"] = group.reason
    lines = []
    for rule in plan.cgroup.rules:
        _, kind, numbers, _ = rule.split(" ")
        major, _, minor = numbers.partition(":")
        usual = device_name(kind, decimal(major) or 0, decimal(minor))
        name = named.get((kind, numbers)) or usual
        lines.append(f"{rule}   ({name})" if name else rule)
    return lines


def _unit(scope: Scope) -> list[str]:
    shown = []
    for one in scope.properties + scope.limits:
        value = one.value
        if one.signature == "a(ss)":
            value = " ".join([f"{name}:{access}" for name, access in value])
        elif isinstance(value, bytes):
            value = value.hex()
        shown.append(f"{one.name}={value}" + (f"   ({one.where})" if one.where else ""))
    return shown


def _namespaces(plan: Plan) -> list[str]:
    new = [name for name, (flag, _) in NAMESPACES.items() if plan.namespaces.new & flag]
    items = [f"new: {' '.join(new)}"] if new else []
    items += [f"join {join.type}: {join.path}" for join in plan.namespaces.joins]
    for name, text in (("uid map", plan.namespaces.uid_map), ("gid map", plan.namespaces.gid_map)):
        items += [f"{name} (inside, outside, count): {line}" for line in text.splitlines()]
    items += [f"clock offset: {line}" for line in plan.namespaces.time_offsets.splitlines()]
    shared = [n for n, (flag, _) in NAMESPACES.items() if not plan.namespaces.has(flag)]
    return [*items, f"the host's: {' '.join(shared)}"] if shared else items


def _idmap_text(step: MountStep) -> str:
    if step.idmap is None:
        return ""
    ids = [", ".join(lines.splitlines()) for lines in (step.idmap.uid_map, step.idmap.gid_map)]
    return f"   (ids mapped{', in all below too' if step.idmap.recursive else ''}: uid {ids[0]}; gid {ids[1]})"


def _lent(plan: Plan) -> list[str]:
    """What the host gives to the container for its life."""
    items = [f"network device {d.name}, there called {d.container_name}" for d in plan.net_devices]
    if plan.cgroup.owner:
        items.append(f"its cgroup, owned by the host's user {plan.cgroup.owner}")
    if plan.intel_rdt is not None:
        items.append(f"resctrl group {plan.intel_rdt.group}: {', '.join(plan.intel_rdt.schemata) or 'as it is'}")
    return items


def _options(options: MountOptions) -> str:
    words = [name for bit, name in _ATTRIBUTES if options.attr_set & bit]
    words += [f"r{name}" for bit, name in _ATTRIBUTES if options.rec_set & bit]
    words += [("r" if recursive else "") + _PROPAGATION[flag] for flag, recursive in options.propagation]
    if options.recursive:
        words.insert(0, "rbind")
    return ",".join([*words, *options.superblock, *options.data])


def _edits(edits: ContainerEdits) -> dict[str, list[str]]:
    found = {
        "GPU: environment": list(edits.env),
        "GPU: device nodes": [
            f"{n.path}  {n.type} {n.major}:{n.minor} may {n.permissions}   ({n.reason})" for n in edits.device_nodes
        ],
        "GPU: device classes": [f"{c.type} {c.major}:* may {c.permissions}   ({c.reason})" for c in edits.device_classes],
        "GPU: files, bound read-only from the host's driver": [
            f"{m.container_path}  from {m.host_path}   ({m.reason})" for m in edits.mounts
        ],
        "GPU: links": [f"{link.path} -> {link.target}   ({link.reason})" for link in edits.links],
        "GPU: libraries for the loader's cache": [f"{e.soname} => {e.path}" for e in edits.ldcache],
        "GPU: files in the image while the container lives": [f"{f.path}   ({f.reason})" for f in edits.image_files],
        "GPU: memory": [f"{one.gpu}   ({limit_text(one)})" for one in edits.memory_limits],
        "GPU: modes": [f"{c.path}  {c.mode:04o}   ({c.reason})" for c in edits.chmods],
    }
    compat = edits.forward_compat
    if compat is not None:
        which = f"{compat.directory} of the image, if its libraries are newer than {compat.driver_version}"
        found["GPU: forward compatibility"] = [f"{which}   ({compat.reason})"]
    for tree in edits.proc_trees:
        shown = [f.path for f in tree.files] + [f"{b.container_path}  from {b.host_path}" for b in tree.binds]
        found[f"GPU: a private {tree.path}   ({tree.reason})"] = shown
    return found


def _hooks(hooks: Hooks) -> list[str]:
    return [
        f"{name}: {' '.join(hook.args or (hook.path,))}" + (f"   (at most {hook.timeout} s)" if hook.timeout else "")
        for name, field in zip(HOOK_NAMES, Hooks._fields, strict=True)
        for hook in getattr(hooks, field)
    ]


def _propagation(plan: Plan) -> str:
    flag, recursive = plan.init.propagation
    if not flag:
        return "rslave, with a private root"
    return f"{'r' if recursive else ''}{_PROPAGATION[flag]}"


def _capabilities(mask: int) -> list[str]:
    return [name for number, name in enumerate(NAMES) if mask >> number & 1]


def _rootfs(plan: Plan) -> list[str]:
    init = plan.init
    items = [f"propagation: {_propagation(plan)}"]
    if not init.mount_namespace:
        items.append("mounted on itself and entered by chroot: the container shares the host's mount namespace")
    elif init.no_pivot:
        items.append("entered by MS_MOVE and chroot (--no-pivot)")
    else:
        items.append("entered by pivot_root")
    if init.readonly:
        items.append("read-only")
    items += [f"{name} {value}" for name, value in (("hostname", init.hostname), ("domainname", init.domainname)) if value]
    return items


def _seccomp(plan: Plan) -> list[str]:
    profile = plan.seccomp
    if profile is None:
        return []
    from gpurun.security.seccomp import ACTIONS, ARCHITECTURES, FLAGS

    def action(word: int) -> str:
        name = next(name for name, value in ACTIONS.items() if value == word & 0xFFFF0000)
        return f"{name} {word & 0xFFFF}" if name in ("SCMP_ACT_ERRNO", "SCMP_ACT_TRACE") else name

    items = [f"{action(profile.default_action)}: what no rule names"]
    if profile.enosys:
        items.append("SCMP_ACT_ERRNO 38 (ENOSYS): system calls newer than all that the rules name")
    for rule in profile.rules:
        shown = " ".join(rule.names[:12]) + (f" and {len(rule.names) - 12} more" if len(rule.names) > 12 else "")
        items.append(f"{action(rule.action)}: {shown}" + ("   (by their arguments)" if rule.conditions else ""))
    architectures = [name for name, token in ARCHITECTURES.items() if token in profile.architectures]
    items.append(f"architectures: {' '.join(architectures)}")
    items += [name for name, flag in FLAGS.items() if flag & profile.flags]
    return [*items, f"agent: {profile.listener_path}"] if profile.listener_path else items


def _process(plan: Plan) -> list[str]:
    process = plan.init.process
    names = {number: name for name, number in RLIMITS.items()}
    items = [
        f"args: {' '.join(process.args)}",
        f"cwd: {process.cwd}",
        f"user {process.uid}:{process.gid}"
        + (f", groups {' '.join([str(g) for g in process.groups])}" if process.groups else "")
        + f", umask {process.umask:04o}",
        f"no_new_privs: {'yes' if process.no_new_privileges else 'no'}",
    ]
    if process.capabilities is None:
        items.append("capabilities: those of the caller")
    else:
        for field in type(process.capabilities)._fields:
            mask = getattr(process.capabilities, field)
            items.append(f"capabilities, {field}: {' '.join(_capabilities(mask)) or 'none'}")
    if process.oom_score_adj is not None:
        items.append(f"oom_score_adj {process.oom_score_adj}")
    for name, label in (("AppArmor profile", process.apparmor_profile), ("SELinux label", process.selinux_label)):
        items += [f"{name} {label}"] if label else []
    if process.knobs is not None:
        values = [(field, getattr(process.knobs, field)) for field in type(process.knobs)._fields]
        items += [f"{field}: {value}" for field, value in values if value is not None]
    items += [f"{names[number]} {soft}:{hard}" for number, soft, hard in process.rlimits]
    items += [f"env {name}={value}" for name, value in process.env]
    return items
