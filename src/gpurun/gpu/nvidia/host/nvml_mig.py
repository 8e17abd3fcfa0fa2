"""MIG by NVML, only in the helper process: what a GPU can be and is divided into, and the calls that divide it.

The numbers of profiles are NVML_GPU_INSTANCE_PROFILE_* and NVML_COMPUTE_INSTANCE_PROFILE_*; their ids, which other calls
take, are those that the driver tells.
"""

from __future__ import annotations

from ctypes import Structure, byref, c_char_p, c_uint, c_ulonglong, c_void_p

from gpurun.gpu.nvidia.host.nvml_details import GpuInstanceInfo, Placement
from gpurun.gpu.nvidia.host.nvml_library import SUCCESS, Memory, Nvml, NvmlError, PciInfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INVALID_ARGUMENT, NOT_SUPPORTED, INSUFFICIENT_SIZE = 2, 3, 7
#: More than NVML knows today: a number that it does not know ends the list.
_PROFILES = 64
_SHARED_ENGINES = 0  # NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, the only one


class GpuInstanceProfileInfo(Structure):
    """``nvmlGpuInstanceProfileInfo_t``."""

    _fields_ = [
        ("id", c_uint),
        ("isP2pSupported", c_uint),
        ("sliceCount", c_uint),
        ("instanceCount", c_uint),
        ("multiprocessorCount", c_uint),
        ("copyEngineCount", c_uint),
        ("decoderCount", c_uint),
        ("encoderCount", c_uint),
        ("jpegCount", c_uint),
        ("ofaCount", c_uint),
        ("memorySizeMB", c_ulonglong),
    ]


class ComputeInstanceProfileInfo(Structure):
    """``nvmlComputeInstanceProfileInfo_t``."""

    _fields_ = [
        ("id", c_uint),
        ("sliceCount", c_uint),
        ("instanceCount", c_uint),
        ("multiprocessorCount", c_uint),
        ("sharedCopyEngineCount", c_uint),
        ("sharedDecoderCount", c_uint),
        ("sharedEncoderCount", c_uint),
        ("sharedJpegCount", c_uint),
        ("sharedOfaCount", c_uint),
    ]


class ComputeInstanceInfo(Structure):
    """``nvmlComputeInstanceInfo_t``."""

    _fields_ = [
        ("device", c_void_p), ("gpuInstance", c_void_p), ("id", c_uint), ("profileId", c_uint), ("placement", Placement),
    ]  # fmt: skip


def mig_state(nvml: Nvml) -> dict[str, Any]:
    """``gpus`` in NVML's order, each with ``index``, ``uuid``, ``busId``, ``pciDevice``, ``pciSubsystem`` and ``memory``.

    ``mode`` and ``pending`` are None for a GPU without MIG.  ``profiles`` have ``number``, ``slices``, ``memory`` (MiB),
    ``instances`` (how many at the most), ``counts`` (multiprocessors and engines by NVML's names) and ``placements``
    (start, size); they are empty while the driver does not tell.  ``instances`` have ``id``, ``profile``, ``start``,
    ``size`` and ``compute`` (``id``, ``slices``).  A GPU that fails has ``error``.  Raises :class:`NvmlError`.
    """
    count = c_uint()
    nvml.check("nvmlDeviceGetCount_v2", byref(count))
    return {"gpus": [_gpu(nvml, index) for index in range(count.value)]}


def _gpu(nvml: Nvml, index: int) -> dict[str, Any]:
    device, pci, memory = c_void_p(), PciInfo(), Memory()
    try:
        nvml.check("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(device))
        nvml.check("nvmlDeviceGetPciInfo_v3", device, byref(pci))
        mode, pending = c_uint(), c_uint()
        code = nvml.call("nvmlDeviceGetMigMode", device, byref(mode), byref(pending))
        able = code == SUCCESS
        if code not in (SUCCESS, NOT_SUPPORTED):
            raise NvmlError("nvmlDeviceGetMigMode", code, nvml.error_text(code))
        if able:
            nvml.check("nvmlDeviceGetMemoryInfo", device, byref(memory))
        profiles = _profiles(nvml, device) if able else []
        instances = _instances(nvml, device, profiles) if able and mode.value else []
    except NvmlError as e:
        return {"index": index, "error": str(e)}
    return {
        "index": index,
        "uuid": nvml.text("nvmlDeviceGetUUID", device) or "",
        "busId": f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
        "pciDevice": pci.pciDeviceId,
        "pciSubsystem": pci.pciSubSystemId,
        "memory": memory.total,
        "mode": mode.value if able else None,
        "pending": pending.value if able else None,
        "profiles": [profile for profile, _ in profiles],
        "instances": instances,
    }


_Profiles = list[tuple["dict[str, Any]", int]]


def _profiles(nvml: Nvml, device: c_void_p) -> _Profiles:
    """(the description of a profile, its id) of each that the GPU has."""
    found: _Profiles = []
    for number in range(_PROFILES):
        info = GpuInstanceProfileInfo()
        code = nvml.call("nvmlDeviceGetGpuInstanceProfileInfo", device, c_uint(number), byref(info))
        if code == INVALID_ARGUMENT and number:
            break
        if code in (NOT_SUPPORTED, INVALID_ARGUMENT):
            continue
        if code != SUCCESS:
            raise NvmlError("nvmlDeviceGetGpuInstanceProfileInfo", code, nvml.error_text(code))
        names = ("multiprocessor", "copyEngine", "decoder", "encoder", "jpeg", "ofa")
        profile = {
            "number": number,
            "slices": info.sliceCount,
            "memory": info.memorySizeMB,
            "instances": info.instanceCount,
            "counts": {name: getattr(info, f"{name}Count") for name in names},
            "placements": _placements(nvml, device, info),
        }
        found.append((profile, info.id))
    return found


def _placements(nvml: Nvml, device: c_void_p, info: GpuInstanceProfileInfo) -> list[list[int]]:
    function = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
    count = c_uint()
    code = nvml.call(function, device, c_uint(info.id), None, byref(count))
    if code not in (SUCCESS, INSUFFICIENT_SIZE):
        return []  # not known while MIG is off
    table = (Placement * max(count.value, 1))()
    if nvml.call(function, device, c_uint(info.id), table, byref(count)) != SUCCESS:
        return []
    return [[one.start, one.size] for one in table[: count.value]]


def _instances(nvml: Nvml, device: c_void_p, profiles: _Profiles) -> list[dict[str, Any]]:
    found = []
    for profile, profile_id in profiles:
        count, table = c_uint(), (c_void_p * max(profile["instances"], 1))()
        nvml.check("nvmlDeviceGetGpuInstances", device, c_uint(profile_id), table, byref(count))
        for handle in table[: count.value]:
            instance, info = c_void_p(handle), GpuInstanceInfo()
            nvml.check("nvmlGpuInstanceGetInfo", instance, byref(info))
            found.append(
                {
                    "id": info.id,
                    "profile": profile["number"],
                    "start": info.placement.start,
                    "size": info.placement.size,
                    "compute": _compute(nvml, instance),
                }
            )
    return sorted(found, key=lambda one: (one["start"], one["id"]))


def _compute_profiles(nvml: Nvml, instance: c_void_p) -> list[ComputeInstanceProfileInfo]:
    found = []
    for number in range(_PROFILES):
        info = ComputeInstanceProfileInfo()
        arguments = (instance, c_uint(number), c_uint(_SHARED_ENGINES), byref(info))
        code = nvml.call("nvmlGpuInstanceGetComputeInstanceProfileInfo", *arguments)
        if code == INVALID_ARGUMENT and number:
            break
        if code in (NOT_SUPPORTED, INVALID_ARGUMENT):
            continue
        if code != SUCCESS:
            raise NvmlError("nvmlGpuInstanceGetComputeInstanceProfileInfo", code, nvml.error_text(code))
        found.append(info)
    return found


def _compute(nvml: Nvml, instance: c_void_p) -> list[dict[str, int]]:
    found: dict[int, int] = {}
    for profile in _compute_profiles(nvml, instance):
        count, table = c_uint(), (c_void_p * max(profile.instanceCount, 1))()
        nvml.check("nvmlGpuInstanceGetComputeInstances", instance, c_uint(profile.id), table, byref(count))
        for handle in table[: count.value]:
            info = ComputeInstanceInfo()
            nvml.check("nvmlComputeInstanceGetInfo_v2", c_void_p(handle), byref(info))
            found[info.id] = profile.sliceCount
    return [{"id": one, "slices": slices} for one, slices in sorted(found.items())]


def change_mig(nvml: Nvml, words: list[str]) -> dict[str, Any]:
    """Do what *words* say, one after the other, until one fails.

    Each word is ``UUID mode 0|1``, ``UUID destroy GI``, or ``UUID create PROFILE START SIZE SLICES...``, the last being the
    slices of each compute instance.  ``done`` has what came of each: of ``mode`` the modes (``mode``, ``pending`` and
    ``status``, the code with which it was activated), of ``create`` the ids (``gi`` and ``ci``).  ``failed`` is the text of
    the one that failed, ``code`` NVML's number for it.  A GPU instance whose compute instances cannot be made is taken away
    again.
    """
    done: list[dict[str, Any]] = []
    for word in words:
        uuid, what, *numbers = word.split(" ")
        device = c_void_p()
        try:
            nvml.check("nvmlDeviceGetHandleByUUID", c_char_p(uuid.encode()), byref(device))
            done.append(_CHANGES[what](nvml, device, [int(number) for number in numbers]))
        except NvmlError as e:
            return {"done": done, "failed": str(e), "code": e.code}
    return {"done": done, "failed": "", "code": SUCCESS}


def _set_mode(nvml: Nvml, device: c_void_p, numbers: list[int]) -> dict[str, Any]:
    status, mode, pending = c_uint(), c_uint(), c_uint()
    nvml.check("nvmlDeviceSetMigMode", device, c_uint(numbers[0]), byref(status))
    nvml.check("nvmlDeviceGetMigMode", device, byref(mode), byref(pending))
    return {"mode": mode.value, "pending": pending.value, "status": status.value}


def _destroy(nvml: Nvml, device: c_void_p, numbers: list[int]) -> dict[str, Any]:
    instance = c_void_p()
    nvml.check("nvmlDeviceGetGpuInstanceById", device, c_uint(numbers[0]), byref(instance))
    for one in _compute(nvml, instance):
        compute = c_void_p()
        nvml.check("nvmlGpuInstanceGetComputeInstanceById", instance, c_uint(one["id"]), byref(compute))
        nvml.check("nvmlComputeInstanceDestroy", compute)
    nvml.check("nvmlGpuInstanceDestroy", instance)
    return {}


def _create(nvml: Nvml, device: c_void_p, numbers: list[int]) -> dict[str, Any]:
    profile, start, size, *parts = numbers
    info, instance, made = GpuInstanceProfileInfo(), c_void_p(), GpuInstanceInfo()
    nvml.check("nvmlDeviceGetGpuInstanceProfileInfo", device, c_uint(profile), byref(info))
    place = Placement(start, size)
    nvml.check("nvmlDeviceCreateGpuInstanceWithPlacement", device, c_uint(info.id), byref(place), byref(instance))
    try:
        nvml.check("nvmlGpuInstanceGetInfo", instance, byref(made))
        ids = [_create_compute(nvml, instance, slices) for slices in parts]
    except NvmlError:
        for one in _compute(nvml, instance):
            compute = c_void_p()
            if nvml.call("nvmlGpuInstanceGetComputeInstanceById", instance, c_uint(one["id"]), byref(compute)) == SUCCESS:
                nvml.call("nvmlComputeInstanceDestroy", compute)
        nvml.call("nvmlGpuInstanceDestroy", instance)
        raise
    return {"gi": made.id, "ci": ids}


def _create_compute(nvml: Nvml, instance: c_void_p, slices: int) -> int:
    ids = [profile.id for profile in _compute_profiles(nvml, instance) if profile.sliceCount == slices]
    if not ids:
        text = f"no compute instance has {slices} slices"
        raise NvmlError("nvmlGpuInstanceGetComputeInstanceProfileInfo", NOT_SUPPORTED, text)
    made, info = c_void_p(), ComputeInstanceInfo()
    nvml.check("nvmlGpuInstanceCreateComputeInstance", instance, c_uint(ids[0]), byref(made))
    nvml.check("nvmlComputeInstanceGetInfo_v2", made, byref(info))
    return int(info.id)


_CHANGES = {"mode": _set_mode, "destroy": _destroy, "create": _create}
