"""A plan in ten lines: what a user asks first about a container; pure."""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.gpu.nvidia.host.device_numbers import NVIDIA_MAJOR, device_name, node_minors
from gpurun.linux.mount import MOUNT_ATTR_RDONLY
from gpurun.ns.namespaces import NAMESPACES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.engine.plan.container import Plan

_KIB = 1 << 10


def summary(plan: Plan) -> dict[str, str]:
    """What is summed up → in words."""
    process = plan.init.process
    words = " ".join(process.args)
    found = {
        "program": f"{words[:157]}...   " if len(words) > 160 else f"{words}   ",
        "root": plan.rootfs + (", read-only" if plan.init.readonly else ""),
        "namespaces": _namespaces(plan),
        "privileges": _privileges(plan),
        "limits": _limits(plan),
        "mounts": _mounts(plan),
        "GPUs": _gpus(plan),
        "hooks": _hooks(plan),
    }
    found["program"] += f"as {process.uid}:{process.gid} in {process.cwd}"
    if plan.warnings:
        found["warnings"] = f"{len(plan.warnings)}, see below"
    return found


def _namespaces(plan: Plan) -> str:
    spaces = plan.namespaces
    joined = [join.type for join in spaces.joins]
    new = [name for name, (flag, _) in NAMESPACES.items() if spaces.new & flag]
    shared = [name for name, (flag, _) in NAMESPACES.items() if not spaces.has(flag)]
    parts = [("new", new), ("joined", joined), ("the host's", shared)]
    return "; ".join([f"{what}: {', '.join(names)}" for what, names in parts if names])


def _privileges(plan: Plan) -> str:
    process = plan.init.process
    masks = process.capabilities
    if masks is None:
        parts = ["the caller's capabilities"]
    else:
        count = masks.bounding.bit_count()
        parts = [f"{count} of {process.last_cap + 1} capabilities" if count else "no capabilities"]
    parts.append("no_new_privs" if process.no_new_privileges else "may gain privileges by execve")
    parts.append("no seccomp filter" if plan.seccomp is None else f"a seccomp filter of {len(plan.seccomp.rules)} rules")
    if process.apparmor_profile:
        parts.append(f"AppArmor {process.apparmor_profile}")
    if process.selinux_label:
        parts.append(f"SELinux {process.selinux_label}")
    return ", ".join(parts)


def _limits(plan: Plan) -> str:
    if not plan.cgroup.path:
        return "none: it stays in the caller's cgroup"
    shown = [f"{write.file} {_size(write.file, write.value)}" for write in plan.cgroup.writes]
    return ", ".join(shown) or "none"


def _size(file: str, value: str) -> str:
    """Bytes in the unit that a person would say."""
    number = decimal(value)
    if not file.startswith("memory.") or number is None or number < _KIB:
        return value
    unit = 0
    while number % _KIB == 0 and unit < 4:
        number, unit = number // _KIB, unit + 1
    return f"{number} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _mounts(plan: Plan) -> str:
    binds = [step for step in plan.init.mounts if step.kind == "bind" and not step.options.remount]
    others = len(plan.init.mounts) - len(binds)
    shown = []
    for step in binds:
        readonly = (step.options.attr_set | step.options.rec_set) & MOUNT_ATTR_RDONLY
        shown.append(f"{step.source} on {step.destination}{'' if readonly else ', writable'}")
    of_host = f"; of the host: {'; '.join(shown)}" if shown else "; none of the host's directories"
    return f"{others} file systems{of_host}"


def _gpus(plan: Plan) -> str:
    edits = plan.init.edits
    if not edits.device_nodes and not edits.mounts:
        return "none"
    gpus = ", ".join([device_name("c", NVIDIA_MAJOR, minor) for minor in node_minors(edits.device_nodes)])
    counts = f"{len(edits.device_nodes)} device nodes, {len(edits.mounts)} files of the host's driver"
    return f"{gpus}: {counts}" if gpus else counts


def _hooks(plan: Plan) -> str:
    counts = [(len(getattr(plan.hooks, field)), field.replace("_", " ")) for field in type(plan.hooks)._fields]
    return ", ".join([f"{count} {name}" for count, name in counts if count]) or "none"
