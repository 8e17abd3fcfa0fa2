"""The figures of GPUs, under the names of NVIDIA's dcgm-exporter, so that its dashboards and alerts go on; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpurun.kubernetes.pod_resources import Owner
from gpurun.metrics.samples import Sample

_MIB = 1 << 20

#: dcgm's name → (kind, help, where NVML's answer has it).
_SENSORS: dict[str, tuple[str, str, str]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "SM clock frequency (in MHz).", "smClock"),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", "Memory clock frequency (in MHz).", "memoryClock"),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C).", "temperature"),
    "DCGM_FI_DEV_MEMORY_TEMP": ("gauge", "Memory temperature (in C).", "memoryTemperature"),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw (in W).", "power"),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", "Energy since the driver was loaded (in mJ).", "energy"),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("counter", "PCIe retries.", "pcieReplays"),
    "DCGM_FI_DEV_ENC_UTIL": ("gauge", "Encoder utilization (in %).", "encoder"),
    "DCGM_FI_DEV_DEC_UTIL": ("gauge", "Decoder utilization (in %).", "decoder"),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("counter", "Remapped rows for correctable errors.", "correctableRows"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("counter", "Remapped rows for uncorrectable errors.", "uncorrectableRows"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("gauge", "Whether remapping of rows has failed.", "rowRemapFailure"),
}
_USED = ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).")
_FREE = ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).")
_LOAD = ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).")
_COPY = ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).")
_XID = ("DCGM_FI_DEV_XID_ERRORS", "gauge", "The last Xid error; 0: none since this program started.")

_CHOICE = (*_SENSORS, *[name for name, _, _ in (_USED, _FREE, _LOAD, _COPY, _XID)])
#: Every field that there can be, and those that can be labels of all metrics; a file of counters chooses.
FIELDS = frozenset(_CHOICE)
LABEL_FIELDS = ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_DEV_BRAND")

Labels = tuple[tuple[str, str], ...]


def gpu_samples(
    answer: Mapping[str, Any], host: str, owners: tuple[Owner, ...] = (), xids: Mapping[str, int] | None = None,
    labels: tuple[str, ...] = LABEL_FIELDS[:1],
) -> list[Sample]:  # fmt: skip
    """The samples of NVML's *answer* to ``metrics``; once for each container that has the device, if any has.

    *xids* has the last Xid of each GPU by its UUID, None where nobody watches for them; *labels* are of
    :data:`LABEL_FIELDS`.
    """
    made: list[Sample] = []
    for gpu in answer["gpus"]:
        if gpu.get("error") is not None:
            continue
        uuid = str(gpu.get("uuid") or "")
        common = _labels(gpu, host) + _label_fields(gpu, str(answer.get("driverVersion") or ""), labels)
        names = {uuid, f"gpu-{gpu.get('minor')}"}
        values = _values(gpu, None if xids is None else xids.get(uuid, 0))
        for owned in _owned(common, names, owners):
            made += [Sample(name, kind, text, owned, value) for (name, kind, text), value in values]
        for mig in gpu.get("migDevices") or ():
            made += _mig(gpu, mig, common, owners)
    return made


def _labels(gpu: Mapping[str, Any], host: str) -> Labels:
    found = {
        "gpu": str(gpu["index"]), "UUID": str(gpu.get("uuid") or ""), "pci_bus_id": _bus(str(gpu.get("busId") or "")),
        "device": f"nvidia{gpu.get('minor')}", "modelName": str(gpu.get("name") or ""), "Hostname": host,
    }  # fmt: skip
    return tuple(found.items())


def _label_fields(gpu: Mapping[str, Any], driver: str, names: tuple[str, ...]) -> Labels:
    found = {"DCGM_FI_DRIVER_VERSION": driver, "DCGM_FI_DEV_BRAND": str(gpu.get("brand") or "")}
    return tuple([(name, found[name]) for name in names])


def _bus(bus_id: str) -> str:
    """With eight digits of the domain and in capitals, as dcgm has it."""
    domain, colon, rest = bus_id.partition(":")
    return f"{domain:0>8}:{rest}".upper() if colon else ""


def _owned(common: Labels, names: set[str], owners: tuple[Owner, ...]) -> list[Labels]:
    having = [owner for owner in owners if owner.device in names]
    return [(*common, ("container", o.container), ("namespace", o.namespace), ("pod", o.pod), *o.more) for o in having] or [
        common
    ]


def _values(gpu: Mapping[str, Any], xid: int | None) -> list[tuple[tuple[str, str, str], float]]:
    sensors = gpu.get("sensors") or {}
    made = [((name, kind, text), float(sensors[key])) for name, (kind, text, key) in _SENSORS.items() if key in sensors]
    load = gpu.get("utilization")
    if load is not None:
        made += [(_LOAD, float(load["gpu"])), (_COPY, float(load["memory"]))]
    made += _memory(gpu)
    return made if xid is None else [*made, (_XID, float(xid))]


def _memory(device: Mapping[str, Any]) -> list[tuple[tuple[str, str, str], float]]:
    total, used = device.get("memoryTotal"), device.get("memoryUsed")
    if total is None or used is None:
        return []
    return [(_USED, float(used // _MIB)), (_FREE, float((total - used) // _MIB))]


def _mig(gpu: Mapping[str, Any], mig: Mapping[str, Any], common: Labels, owners: tuple[Owner, ...]) -> list[Sample]:
    instance = (("GPU_I_PROFILE", str(mig.get("profile") or "")), ("GPU_I_ID", str(mig.get("gpuInstance"))))
    ending = f"-{mig.get('gpuInstance')}-{mig.get('computeInstance')}"
    named = {o.device for o in owners if o.device.startswith(f"gpu-{gpu.get('minor')}-mig-") and o.device.endswith(ending)}
    made = []
    for labels in _owned((*common, *instance), {str(mig.get("uuid")), *named}, owners):
        made += [Sample(name, kind, text, labels, value) for (name, kind, text), value in _memory(mig)]
    return made
