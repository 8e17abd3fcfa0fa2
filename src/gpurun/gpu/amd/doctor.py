"""What AMD's GPUs need of the host: KFD, every node there, and groups that let users open all of them."""

from __future__ import annotations

from gpurun.gpu.amd.health import unwell
from gpurun.gpu.amd.host import DRIVER, amd_gpus, kfd_node
from gpurun.gpu.amd.resolve import NO_KFD
from gpurun.gpu.host.access import group_name
from gpurun.gpu.host.drm import devices_of_driver
from gpurun.gpu.host.finding import Finding
from gpurun.gpu.host.naming import parts_text
from gpurun.gpu.host.node_doctor import examine_groups, examine_nodes
from gpurun.gpu.host.reads import read_attribute
from gpurun.gpu.leases.limits_doctor import examine_limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.amd.host import AmdGpu
    from gpurun.gpu.host.reads import HostNode

_KFD, _GPUS, _NODES, _GROUPS = "/dev/kfd", "AMD's GPUs", "AMD's device nodes", "groups of AMD's nodes"
_TRIGGER = "`udevadm trigger --subsystem-match=drm --subsystem-match=kfd`"
_CLOSED = "this user cannot open all, and one that answers EACCES costs ROCm all GPUs"
_RULE = (
    '`echo \'SUBSYSTEM=="kfd|drm", KERNEL=="kfd|renderD*", GROUP="render", MODE="0660"\' > '
    f"/etc/udev/rules.d/70-amdgpu.rules` and {_TRIGGER}"
)


def examine(sysroot: str) -> list[Finding]:
    """The findings for the host below *sysroot*, which has amdgpu, and the user who calls.  Changes nothing."""
    version = read_attribute(f"{sysroot}/sys/module/{DRIVER}/version", 64)
    found = [Finding("amdgpu", "ok", f"version {version}" if version else "loaded, the kernel's own")]
    gpus = amd_gpus(sysroot)
    kfd = kfd_node(sysroot)
    found += [_kfd(kfd), *_gpus(sysroot, gpus)]
    if not gpus:
        return found
    cards = [gpu.drm.card for gpu in gpus if gpu.drm.card is not None]
    computing = [gpu.drm.render for gpu in gpus if gpu.drm.render is not None] + ([kfd] if kfd is not None else [])
    # ROCm opens all nodes but the cards before it chooses among the GPUs.
    nodes = examine_nodes(_NODES, computing, cards, _TRIGGER, _RULE, _CLOSED)
    groups = examine_groups(_GROUPS, computing, _RULE)
    return [*found, *nodes, groups, examine_limits(sysroot, [gpu.pci for gpu in gpus])]


def _kfd(kfd: HostNode | None) -> Finding:
    if kfd is None:
        return Finding(_KFD, "fail", f"the kernel has none: {NO_KFD}")
    if not kfd.exists:
        return Finding(_KFD, "fail", f"is not the character device {kfd.major}:{kfd.minor}: {_TRIGGER} makes it")
    return Finding(_KFD, "ok", f"mode {kfd.mode:04o}, group {group_name(kfd.gid)}")


def _gpus(sysroot: str, gpus: tuple[AmdGpu, ...]) -> list[Finding]:
    computing = {gpu.pci for gpu in gpus}
    found = [
        Finding(
            _GPUS,
            "note",
            f"{device.name} has display nodes and none of KFD: it does not compute, or this cgroup's device rules hide it: "
            "AMD's tools and gpurun do not count it",
        )
        for device in devices_of_driver(sysroot, DRIVER)
        if device.name not in computing
    ]
    ill = unwell(sysroot, gpus, ask=True)
    found += [Finding(_GPUS, "fail", f"{gpu.index} ({gpu.key}): {gpu.silent}") for gpu in gpus if gpu.silent]
    found += [
        Finding(_GPUS, "fail", f"{gpu.index} ({gpu.key}) is unhealthy: {ill[gpu.pci]}") for gpu in gpus if gpu.pci in ill
    ]
    if not gpus:
        text = "none computes: is one in the machine (`lspci -d 1002:`), and does `dmesg` say why amdgpu or kfd refused it?"
        return [Finding(_GPUS, "fail", text), *found]
    count = f"{len(computing)}{parts_text(len([gpu for gpu in gpus if gpu.partition >= 0]))}"
    return [Finding(_GPUS, "ok", f"{count}: " + ", ".join([f"{g.index} = {g.model} ({g.key})" for g in gpus])), *found]
