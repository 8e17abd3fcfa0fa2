"""What a config has of an engine's own doing for devices: nodes, mounts, rules and hooks that it has put in itself."""

from __future__ import annotations

from gpurun.gpu.nvidia.host.device_numbers import node_minors
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.oci.config import Device, Mount, OciHook
    from gpurun.oci.resources import DeviceRule

#: Basenames of the hook that engines add for --gpus.
_REPLACED_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
#: Basenames of the programs that do the createContainer hooks of NVIDIA's CDI files.
CDI_PROGRAMS = ("nvidia-cdi-hook", "nvidia-ctk", "gpurun", "gpurun-fast")


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


def has_gpus(injected: Injected) -> bool:
    """Whether the config has nodes of GPUs itself: made by number, or bound from the host."""
    if node_minors(injected.devices):
        return True
    # /dev/nvidia and a number; a driver root or a simulated one may stand before it
    return any("/dev/nvidia" in mount.source and mount.source[-1:].isdigit() for mount in injected.mounts)
