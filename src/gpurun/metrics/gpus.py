"""The figures of GPUs, under the names of NVIDIA's dcgm-exporter, so that its dashboards and alerts go on; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpurun.kubernetes.makers import NVIDIA
from gpurun.kubernetes.pod_resources import Owner
from gpurun.metrics.fields import COPY, FREE, LABEL_FIELDS, LOAD, RESERVED, SENSORS, TOTAL, TRAFFIC, USED, XID
from gpurun.metrics.samples import Sample

_MIB = 1 << 20

Labels = tuple[tuple[str, str], ...]


def gpu_samples(
    answer: Mapping[str, Any], host: str, owners: tuple[Owner, ...] = (), xids: Mapping[str, int] | None = None,
    labels: tuple[str, ...] = LABEL_FIELDS[:1],
) -> list[Sample]:  # fmt: skip
    """The samples of NVML's *answer* to ``metrics``; once for each container that has the device, if any has.

    *xids* has the last Xid of each GPU by its UUID, None where there is no watch for them; *labels* are of
    :data:`gpurun.metrics.fields.LABEL_FIELDS`.
    """
    made: list[Sample] = []
    for gpu in answer["gpus"]:
        if gpu.get("error") is not None:
            continue
        uuid = str(gpu.get("uuid") or "")
        common = _labels(gpu, host) + _label_fields(gpu, answer, labels)
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


def _label_fields(gpu: Mapping[str, Any], answer: Mapping[str, Any], names: tuple[str, ...]) -> Labels:
    found = {
        "DCGM_FI_DRIVER_VERSION": answer.get("driverVersion"), "DCGM_FI_NVML_VERSION": answer.get("nvmlVersion"),
        "DCGM_FI_DEV_BRAND": gpu.get("brand"), "DCGM_FI_DEV_SERIAL": gpu.get("serial"),
        "DCGM_FI_DEV_VBIOS_VERSION": gpu.get("vbiosVersion"),
    }  # fmt: skip
    return tuple([(name, str(found[name] or "")) for name in names])


def _bus(bus_id: str) -> str:
    """With eight digits of the domain and in capitals, as dcgm has it."""
    domain, colon, rest = bus_id.partition(":")
    return f"{domain:0>8}:{rest}".upper() if colon else ""


def _owned(common: Labels, names: set[str], owners: tuple[Owner, ...]) -> list[Labels]:
    having = [owner for owner in owners if owner.vendor == NVIDIA and owner.device in names]
    return [(*common, ("container", o.container), ("namespace", o.namespace), ("pod", o.pod), *o.more) for o in having] or [
        common
    ]


def _values(gpu: Mapping[str, Any], xid: int | None) -> list[tuple[tuple[str, str, str], float]]:
    sensors = gpu.get("sensors") or {}
    made = [((name, kind, text), float(sensors[key])) for name, (kind, text, key) in SENSORS.items() if key in sensors]
    made += [((name, kind, text), 1024.0 * sensors[key]) for name, (kind, text, key) in TRAFFIC.items() if key in sensors]
    load = gpu.get("utilization")
    if load is not None:
        made += [(LOAD, float(load["gpu"])), (COPY, float(load["memory"]))]
    made += _memory(gpu, sensors.get("memoryReserved"))
    return made if xid is None else [*made, (XID, float(xid))]


def _memory(device: Mapping[str, Any], reserved: int | None = None) -> list[tuple[tuple[str, str, str], float]]:
    """What is used without what is *reserved*, as DCGM has it; NVML counts both, unless it is asked for them apart."""
    total, used = device.get("memoryTotal"), device.get("memoryUsed")
    if total is None or used is None:
        return []
    made = [(USED, float(max(used - (reserved or 0), 0) // _MIB)), (FREE, float((total - used) // _MIB))]
    made.append((TOTAL, float(total // _MIB)))
    return made if reserved is None else [*made, (RESERVED, float(reserved // _MIB))]


def _mig(gpu: Mapping[str, Any], mig: Mapping[str, Any], common: Labels, owners: tuple[Owner, ...]) -> list[Sample]:
    instance = (("GPU_I_PROFILE", str(mig.get("profile") or "")), ("GPU_I_ID", str(mig.get("gpuInstance"))))
    ending = f"-{mig.get('gpuInstance')}-{mig.get('computeInstance')}"
    named = {o.device for o in owners if o.device.startswith(f"gpu-{gpu.get('minor')}-mig-") and o.device.endswith(ending)}
    made = []
    for labels in _owned((*common, *instance), {str(mig.get("uuid")), *named}, owners):
        made += [Sample(name, kind, text, labels, value) for (name, kind, text), value in _memory(mig)]
    return made
