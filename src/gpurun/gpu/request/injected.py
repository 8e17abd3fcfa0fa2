"""What a config has of an engine's own doing for devices: nodes, mounts, rules and hooks that it has put in itself."""

from __future__ import annotations

from gpurun.gpu.vendors import VENDORS
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.vendors import Vendor
    from gpurun.oci.config import Device, Mount, OciHook
    from gpurun.oci.resources import DeviceRule

_REPLACED_HOOKS = tuple([name for vendor in VENDORS for name in vendor.replaced_hooks])


class Injected(Record):
    """What a config has that an engine may have put in for devices: createContainer hooks, mounts, nodes, their rules,
    createRuntime hooks."""

    hooks: tuple[OciHook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    devices: tuple[Device, ...] = ()
    rules: tuple[DeviceRule, ...] = ()
    mount_namespace: bool = True  # of the container's own
    runtime_hooks: tuple[OciHook, ...] = ()


def is_replaced_hook(path: str) -> bool:
    """Whether the OCI prestart hook *path* does what gpurun does itself: run as well, it would do it a second time."""
    return path.rpartition("/")[2] in _REPLACED_HOOKS


def has_gpus(injected: Injected, vendor: Vendor) -> bool:
    """Whether the config has nodes of GPUs of *vendor* itself: made by number, or bound from the host."""
    major, first, last = vendor.numbers
    if any(n.major == major and first <= n.minor <= last and n.type in ("c", "u") for n in injected.devices):
        return True
    # /dev/nvidia and a number; a driver root or a simulated one may stand before it
    directory, prefix = vendor.nodes[0]
    start = f"{directory}/{prefix}"
    return any(start in mount.source and mount.source[-1:].isdigit() for mount in injected.mounts)
