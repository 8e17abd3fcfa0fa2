"""Configurations that the GPUs of a host can have, made from what NVML tells of them, under mig-parted's names: pure.

``all-disabled`` and ``all-enabled`` are always there, ``all-PROFILE`` is as many devices of a profile as fit (a ``+`` is
written as a dot, for a label of Kubernetes has none), ``all-balanced`` is two devices of one slice and one of each larger
size up to half of the GPU.
"""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.gpu.nvidia.mig.placement import arrange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.gpu.nvidia.mig.profile import MigProfile
    from gpurun.gpu.nvidia.mig.state import MigGpu

    #: (profile, how many) of one GPU.
    Devices = tuple[tuple[MigProfile, int], ...]

#: Slices of the whole GPU → (slices of a device, how many) of ``all-balanced``.
_BALANCED = {7: ((1, 2), (2, 1), (3, 1)), 4: ((1, 2), (2, 1))}


def generate_config(gpus: tuple[MigGpu, ...]) -> dict[str, Any]:
    """The document of all configurations of *gpus*, as :func:`gpurun.gpu.nvidia.mig.export.as_yaml` takes it.

    Models whose profiles the driver does not tell (:func:`silent`) are in none but the first two.  Raises :class:`GpuError`
    for a GPU that cannot be asked.
    """
    models: dict[int, MigGpu] = {}
    for gpu in gpus:
        if gpu.problem:
            raise GpuError(f"GPU {gpu.index} cannot be asked what it can be divided into: {gpu.problem}")
        if gpu.mode is not None:
            models.setdefault(gpu.device, gpu)
    configs: dict[str, list[dict[str, Any]]] = {
        "all-disabled": [{"devices": "all", "mig-enabled": False, "mig-devices": {}}],
        "all-enabled": [{"devices": "all", "mig-enabled": True, "mig-devices": {}}],
    }
    by_name: dict[str, list[tuple[int, Devices]]] = {}
    for device, gpu in sorted(models.items()):
        alone = _alone(gpu)
        for profile, count in alone:
            by_name.setdefault(f"all-{profile.name.replace('+', '.')}", []).append((device, ((profile, count),)))
        balanced = _balance(gpu, alone)
        if balanced:
            by_name.setdefault("all-balanced", []).append((device, balanced))
    for name, listed in sorted(by_name.items()):
        configs[name] = [_entry(device, devices, len(models) > 1) for device, devices in listed]
    return {"version": "v1", "mig-configs": configs}


def silent(gpus: tuple[MigGpu, ...]) -> tuple[int, ...]:
    """The indices of GPUs of which the driver does not tell what they can be divided into: some do so only with MIG on."""
    return tuple([gpu.index for gpu in gpus if gpu.mode is not None and not gpu.tells])


def untold(gpus: tuple[MigGpu, ...]) -> str:
    """What to do about the :func:`silent` of *gpus*."""
    listed = ", ".join([str(index) for index in silent(gpus)])
    return f"the driver does not tell what GPU {listed} can be divided into while MIG is off: apply all-enabled first"


def _entry(device: int, devices: Devices, several: bool) -> dict[str, Any]:
    only = {"device-filter": f"0x{device:08X}"} if several else {}
    return only | {"devices": "all", "mig-enabled": True, "mig-devices": {one.name: count for one, count in devices}}


def _alone(gpu: MigGpu) -> Devices:
    """Each profile of whole instances, and how many of it the GPU has room for if there is nothing else."""
    found = []
    for kind in gpu.profiles if gpu.tells else ():
        profile = gpu.named(kind, kind.slices)
        # What NVML tells as the most is too many for some models.
        count = next((count for count in range(kind.most, 0, -1) if _fits(gpu, ((profile, count),))), 0)
        if count:
            found.append((profile, count))
    return tuple(found)


def _balance(gpu: MigGpu, alone: Devices) -> Devices:
    plain = [(profile, count) for profile, count in alone if not profile.has and not profile.lacks]
    wanted = []
    for slices, count in _BALANCED.get(max([profile.slices for profile, _ in plain], default=0), ()):
        # Of several with as many slices, the one with the least memory leaves room for the others.
        sizes = sorted([profile for profile, _ in plain if profile.slices == slices], key=lambda one: one.memory)
        if not sizes:
            return ()
        wanted.append((sizes[0], count))
    return tuple(wanted) if wanted and _fits(gpu, tuple(wanted)) else ()


def _fits(gpu: MigGpu, devices: Devices) -> bool:
    try:
        arrange(gpu, devices)
    except GpuError:
        return False
    return True
