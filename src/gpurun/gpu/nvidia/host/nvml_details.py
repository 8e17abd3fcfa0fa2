"""What NVML says of the GPUs beside who they are: links between them, places of MIG devices, sensors.

Runs only in the helper process (:mod:`gpurun.gpu.nvidia.host.nvml_process`), for those who describe a node: a cluster's
device plugin and node labels, and the metrics.  No container's creation asks for it.
"""

from __future__ import annotations

from ctypes import Structure, Union, byref, c_double, c_int, c_longlong, c_ubyte, c_uint, c_ulong, c_ulonglong, c_void_p

from gpurun.gpu.nvidia.host.nvml_library import SUCCESS, DeviceAttributes, Nvml, PciInfo, describe, memory_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_LINKS = 36  # NVML_NVLINK_MAX_LINKS
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_GPU = 0
#: ``nvmlGpuTopologyLevel_t`` in the words of ``nvidia-smi topo``.
TOPOLOGY = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
#: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_MEMORY_TEMP
FIELD_RECOVERY_ACTION, FIELD_MEMORY_TEMPERATURE = 230, 82
#: NVML_GPU_FABRIC_STATE_COMPLETED
_FABRIC_COMPLETED = 3
#: ``nvmlGpuRecoveryAction_t``
RECOVERY_ACTIONS = {0: "none", 1: "reset", 2: "reboot", 3: "drain p2p", 4: "drain and reset"}


class Placement(Structure):
    """``nvmlGpuInstancePlacement_t``: the memory slices of a GPU instance."""

    _fields_ = [("start", c_uint), ("size", c_uint)]


class GpuInstanceInfo(Structure):
    """``nvmlGpuInstanceInfo_t``."""

    _fields_ = [("device", c_void_p), ("id", c_uint), ("profileId", c_uint), ("placement", Placement)]


class _Value(Union):
    """``nvmlValue_t``."""

    _fields_ = [
        ("dVal", c_double), ("siVal", c_int), ("uiVal", c_uint), ("ulVal", c_ulong), ("ullVal", c_ulonglong),
        ("sllVal", c_longlong),
    ]  # fmt: skip


class FieldValue(Structure):
    """``nvmlFieldValue_t``."""

    _fields_ = [
        ("fieldId", c_uint), ("scopeId", c_uint), ("timestamp", c_longlong), ("latencyUsec", c_longlong),
        ("valueType", c_uint), ("nvmlReturn", c_uint), ("value", _Value),
    ]  # fmt: skip


class FabricInfo(Structure):
    """``nvmlGpuFabricInfo_t``: the NVLink domain of a GPU that is joined with those of other nodes."""

    _fields_ = [("clusterUuid", c_ubyte * 16), ("status", c_uint), ("cliqueId", c_uint), ("state", c_ubyte)]


def details(nvml: Nvml) -> dict[str, Any]:
    """:func:`describe` with ``memoryTotal`` (bytes), ``links``, ``topology``, ``recoveryAction`` and ``clique`` of each GPU.

    ``links`` counts active NVLinks by the bus id of the other end (a GPU or an NVSwitch), ``topology`` says how PCI
    connects it with each other GPU (bus id → a word of :data:`TOPOLOGY`).  MIG devices have ``memoryTotal``,
    ``attributes`` (as nvidia-smi counts its parts) and ``placement`` (``start``, ``size`` in memory slices).
    """
    answer = describe(nvml, usage=False)
    handles = handles_of(nvml, answer)
    for gpu in answer["gpus"]:
        device = handles.get(gpu["index"])
        if device is None:
            continue
        gpu |= memory_of(nvml, device)
        gpu["links"] = _links(nvml, device)
        others = [(other["busId"], handles.get(other["index"])) for other in answer["gpus"] if other is not gpu]
        gpu["topology"] = {bus: how for bus, other in others if bus and other and (how := _ancestor(nvml, device, other))}
        gpu["recoveryAction"] = _recovery(nvml, device)
        gpu["clique"] = _clique(nvml, device)
        for mig in gpu["migDevices"]:
            _add_mig(nvml, device, mig)
    return answer


def sensors(nvml: Nvml, device: c_void_p) -> dict[str, float | None]:
    """Clocks in MHz, temperatures in °C, power in W, energy in mJ since the driver was loaded, utilisation in percent."""
    power = nvml.number("nvmlDeviceGetPowerUsage", device)
    energy = c_ulonglong()
    rows = [c_uint() for _ in range(4)]
    remapped = nvml.call("nvmlDeviceGetRemappedRows", device, *[byref(row) for row in rows]) == SUCCESS
    return {
        "smClock": nvml.number("nvmlDeviceGetClockInfo", device, c_uint(_CLOCK_SM)),
        "memoryClock": nvml.number("nvmlDeviceGetClockInfo", device, c_uint(_CLOCK_MEMORY)),
        "temperature": nvml.number("nvmlDeviceGetTemperature", device, c_uint(_TEMPERATURE_GPU)),
        "memoryTemperature": field(nvml, device, FIELD_MEMORY_TEMPERATURE),
        "power": None if power is None else power / 1000,
        "energy": (
            energy.value if nvml.call("nvmlDeviceGetTotalEnergyConsumption", device, byref(energy)) == SUCCESS else None
        ),
        "pcieReplays": nvml.number("nvmlDeviceGetPcieReplayCounter", device),
        "encoder": _read_sample(nvml, "nvmlDeviceGetEncoderUtilization", device),
        "decoder": _read_sample(nvml, "nvmlDeviceGetDecoderUtilization", device),
        "correctableRows": rows[0].value if remapped else None,
        "uncorrectableRows": rows[1].value if remapped else None,
        "rowRemapFailure": rows[3].value if remapped else None,
    }


def add_health(nvml: Nvml, answer: dict[str, Any]) -> None:
    """Give each GPU of *answer* ``recoveryAction`` (None: not known) and ``rowRemapFailure``."""
    handles = handles_of(nvml, answer)
    for gpu in answer["gpus"]:
        device = handles.get(gpu["index"])
        if device is not None:
            rows = [c_uint() for _ in range(4)]
            remapped = nvml.call("nvmlDeviceGetRemappedRows", device, *[byref(row) for row in rows]) == SUCCESS
            gpu["recoveryAction"] = _recovery(nvml, device)
            gpu["rowRemapFailure"] = bool(rows[3].value) if remapped else None


def _recovery(nvml: Nvml, device: c_void_p) -> str | None:
    action = field(nvml, device, FIELD_RECOVERY_ACTION)
    return None if action is None else RECOVERY_ACTIONS.get(action, str(action))


def _clique(nvml: Nvml, device: c_void_p) -> str | None:
    """The NVLink domain over several nodes, ``UUID.number``; None for a GPU that has joined none."""
    info = FabricInfo()
    if nvml.call("nvmlDeviceGetGpuFabricInfo", device, byref(info)) != SUCCESS:
        return None
    digits = bytes(info.clusterUuid).hex()
    if info.state != _FABRIC_COMPLETED or info.status != SUCCESS or not digits.strip("0"):
        return None
    parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
    return f"{'-'.join(parts)}.{info.cliqueId}"


def field(nvml: Nvml, device: c_void_p, number: int) -> int | None:
    """The value of NVML's field *number*, an unsigned number; None where this driver or card has no such field."""
    asked = FieldValue(fieldId=number)
    if nvml.call("nvmlDeviceGetFieldValues", device, c_int(1), byref(asked)) != SUCCESS or asked.nvmlReturn != SUCCESS:
        return None
    return int(asked.value.uiVal)


def handles_of(nvml: Nvml, answer: dict[str, Any]) -> dict[int, c_void_p]:
    """The handles of the GPUs of *answer* by their indices, but of those that fail."""
    found = {}
    for gpu in answer["gpus"]:
        device = c_void_p()
        if "error" not in gpu and nvml.call("nvmlDeviceGetHandleByIndex_v2", c_uint(gpu["index"]), byref(device)) == SUCCESS:
            found[gpu["index"]] = device
    return found


def _links(nvml: Nvml, device: c_void_p) -> dict[str, int]:
    found: dict[str, int] = {}
    for link in range(_MAX_LINKS):
        active, info = c_uint(), PciInfo()
        if nvml.call("nvmlDeviceGetNvLinkState", device, c_uint(link), byref(active)) != SUCCESS:
            break  # no more of them
        if active.value and nvml.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, c_uint(link), byref(info)) == SUCCESS:
            other = f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"
            found[other] = found.get(other, 0) + 1
    return found


def _ancestor(nvml: Nvml, device: c_void_p, other: c_void_p) -> str | None:
    level = nvml.number("nvmlDeviceGetTopologyCommonAncestor", device, other)
    return None if level is None else TOPOLOGY.get(level)


def _add_mig(nvml: Nvml, device: c_void_p, mig: dict[str, Any]) -> None:
    handle = c_void_p()
    if nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", device, c_uint(mig["index"]), byref(handle)) != SUCCESS:
        return
    mig |= memory_of(nvml, handle)
    share = DeviceAttributes()
    if nvml.call("nvmlDeviceGetAttributes_v2", handle, byref(share)) == SUCCESS:
        mig["attributes"] = {name: int(getattr(share, name)) for name, *_ in share._fields_}
    instance, info = c_void_p(), GpuInstanceInfo()
    if (
        mig["gpuInstance"] is not None
        and nvml.call("nvmlDeviceGetGpuInstanceById", device, c_uint(mig["gpuInstance"]), byref(instance)) == SUCCESS
        and nvml.call("nvmlGpuInstanceGetInfo", instance, byref(info)) == SUCCESS
    ):
        mig["placement"] = {"start": int(info.placement.start), "size": int(info.placement.size)}


def _read_sample(nvml: Nvml, function: str, device: c_void_p) -> int | None:
    percent, period = c_uint(), c_uint()
    return percent.value if nvml.call(function, device, byref(percent), byref(period)) == SUCCESS else None
