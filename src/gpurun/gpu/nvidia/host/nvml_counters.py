"""Counters of NVML beyond the sensors: NVLink, violations, ECC, reserved memory, PCIe, and the profiling figures of GPM.

Runs only in the helper process (:mod:`gpurun.gpu.nvidia.host.nvml_process`), for the metrics.  What a card or a driver has
not is left out.
"""

from __future__ import annotations

import time
from ctypes import Structure, byref, c_char_p, c_double, c_int, c_uint, c_ulonglong, c_void_p, sizeof

from gpurun.gpu.nvidia.host.nvml_details import FieldValue, handles_of, sensors
from gpurun.gpu.nvidia.host.nvml_library import SUCCESS, Nvml, describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Words of what takes time and is asked for by name: two measurements of 20 ms for each GPU, and GPM's two samples.
PCIE, GPM = "pcie", "gpm"
#: Seconds between GPM's two samples, for all GPUs together.
GPM_S = 0.5

_MOST = 1e15  # neither not-a-number nor infinity is less
_ALL_LINKS = 0xFFFFFFFF
#: Name → NVML_FI_DEV_*.
FIELDS = {
    "nvlinkFlitErrors": 38, "nvlinkDataErrors": 45, "nvlinkReplays": 52, "nvlinkRecoveries": 59,
    "nvlinkSentKib": 138, "nvlinkReceivedKib": 139,
}  # fmt: skip
#: Name → nvmlPerfPolicyType_t.
POLICIES = {
    "powerViolation": 0, "thermalViolation": 1, "syncBoostViolation": 2, "boardLimitViolation": 3, "lowUtilViolation": 4,
    "reliabilityViolation": 5,
}  # fmt: skip
#: Name → (nvmlMemoryErrorType_t, nvmlEccCounterType_t).
_ECC = {"eccSbeVolatile": (0, 0), "eccDbeVolatile": (1, 0), "eccSbeAggregate": (0, 1), "eccDbeAggregate": (1, 1)}
#: Name → (nvmlGpmMetricId_t, what makes a ratio of percent or bytes of MiB).
GPM_METRICS = {
    "grEngineActive": (1, 0.01), "smActive": (2, 0.01), "smOccupancy": (3, 0.01), "intActive": (4, 0.01),
    "tensorActive": (5, 0.01), "tensorDfmaActive": (6, 0.01), "tensorHmmaActive": (7, 0.01), "tensorImmaActive": (9, 0.01),
    "dramActive": (10, 0.01), "fp64Active": (11, 0.01), "fp32Active": (12, 0.01), "fp16Active": (13, 0.01),
    "pcieTxBytes": (20, 1 << 20), "pcieRxBytes": (21, 1 << 20),
    "nvlinkRxBytes": (60, 1 << 20), "nvlinkTxBytes": (61, 1 << 20),
}  # fmt: skip


class MemoryV2(Structure):
    """``nvmlMemory_v2_t``, bytes."""

    _fields_ = [
        ("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong),
    ]  # fmt: skip


class ViolationTime(Structure):
    """``nvmlViolationTime_t``: microseconds of now, and nanoseconds that the policy held the clocks down."""

    _fields_ = [("referenceTime", c_ulonglong), ("violationTime", c_ulonglong)]


class GpmSupport(Structure):
    """``nvmlGpmSupport_t``."""

    _fields_ = [("version", c_uint), ("isSupportedDevice", c_uint)]


class _MetricInfo(Structure):
    _fields_ = [("shortName", c_char_p), ("longName", c_char_p), ("unit", c_char_p)]


class GpmMetric(Structure):
    """``nvmlGpmMetric_t``."""

    _fields_ = [("metricId", c_uint), ("nvmlReturn", c_uint), ("value", c_double), ("metricInfo", _MetricInfo)]


class GpmMetrics(Structure):
    """``nvmlGpmMetricsGet_t``; the array is as long as any library's."""

    _fields_ = [
        ("version", c_uint), ("numMetrics", c_uint), ("sample1", c_void_p), ("sample2", c_void_p),
        ("metrics", GpmMetric * 1024),
    ]  # fmt: skip


def metrics(nvml: Nvml, words: list[str]) -> dict[str, Any]:
    """The answer to ``usage`` with ``sensors`` of each GPU; what a card does not have is left out there.

    Also ``nvmlVersion``, and ``serial`` and ``vbiosVersion`` of each GPU.  *words* are
    :data:`PCIE` and :data:`GPM`.
    """
    answer = describe(nvml, usage=True)
    answer["nvmlVersion"] = nvml.text("nvmlSystemGetNVMLVersion")
    handles = handles_of(nvml, answer)
    profiled = gpm(nvml, handles) if GPM in words else {}
    for gpu in answer["gpus"]:
        device = handles.get(gpu["index"])
        if device is not None:
            found = sensors(nvml, device)
            gpu["sensors"] = {name: value for name, value in found.items() if value is not None}
            gpu["sensors"] |= counters(nvml, device, words) | profiled.get(gpu["index"], {})
            gpu["serial"] = nvml.text("nvmlDeviceGetSerial", device)
            gpu["vbiosVersion"] = nvml.text("nvmlDeviceGetVbiosVersion", device)
    return answer


def counters(nvml: Nvml, device: c_void_p, words: list[str]) -> dict[str, float]:
    """The counters of one GPU: bytes, nanoseconds, KiB and numbers; with :data:`PCIE` in *words* PCIe's KB/s."""
    found: dict[str, float] = {}
    memory = MemoryV2(version=2 << 24 | sizeof(MemoryV2))
    if nvml.call("nvmlDeviceGetMemoryInfo_v2", device, byref(memory)) == SUCCESS:
        found["memoryReserved"] = memory.reserved
    for name, policy in POLICIES.items():
        spent = ViolationTime()
        if nvml.call("nvmlDeviceGetViolationStatus", device, c_uint(policy), byref(spent)) == SUCCESS:
            found[name] = spent.violationTime
    for name, (kind, since) in _ECC.items():
        count = c_ulonglong()
        if nvml.call("nvmlDeviceGetTotalEccErrors", device, c_uint(kind), c_uint(since), byref(count)) == SUCCESS:
            found[name] = count.value
    found |= _fields(nvml, device)
    if PCIE in words:
        for name, direction in (("pcieTx", 0), ("pcieRx", 1)):
            rate = nvml.number("nvmlDeviceGetPcieThroughput", device, c_uint(direction))
            if rate is not None:
                found[name] = rate
    return found


def _fields(nvml: Nvml, device: c_void_p) -> dict[str, float]:
    asked = (FieldValue * len(FIELDS))()
    for one, number in zip(asked, FIELDS.values(), strict=True):
        one.fieldId, one.scopeId = number, _ALL_LINKS if number in (138, 139) else 0
    if nvml.call("nvmlDeviceGetFieldValues", device, c_int(len(asked)), asked) != SUCCESS:
        return {}
    return {name: number_of(one) for name, one in zip(FIELDS, asked, strict=True) if one.nvmlReturn == SUCCESS}


def number_of(field: FieldValue) -> float:
    """The value of *field*, by its ``nvmlValueType_t``."""
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")
    value = getattr(field.value, names[field.valueType] if field.valueType < len(names) else "ullVal")
    return float(value)


def gpm(nvml: Nvml, devices: dict[int, c_void_p]) -> dict[int, dict[str, float]]:
    """The profiling figures of those of *devices* that have them, over the time between two samples: ratios, bytes/s.

    By the keys of *devices*; GPUs before Hopper have none, and neither has one that MIG divides.
    """
    samples: dict[int, tuple[c_void_p, c_void_p]] = {}
    try:
        for index, device in devices.items():
            support = GpmSupport(version=1)
            if nvml.call("nvmlGpmQueryDeviceSupport", device, byref(support)) != SUCCESS or not support.isSupportedDevice:
                continue
            pair = c_void_p(), c_void_p()
            samples[index] = pair
            if any(nvml.call("nvmlGpmSampleAlloc", byref(one)) != SUCCESS for one in pair):
                continue
        first = [
            i for i, pair in samples.items() if pair[1] and nvml.call("nvmlGpmSampleGet", devices[i], pair[0]) == SUCCESS
        ]
        if first:
            time.sleep(GPM_S)
        both = [i for i in first if nvml.call("nvmlGpmSampleGet", devices[i], samples[i][1]) == SUCCESS]
        return {index: _between(nvml, *samples[index]) for index in both}
    finally:
        for pair in samples.values():
            for one in pair:
                if one:
                    nvml.call("nvmlGpmSampleFree", one)


def _between(nvml: Nvml, before: c_void_p, after: c_void_p) -> dict[str, float]:
    asked = GpmMetrics(version=1, numMetrics=len(GPM_METRICS), sample1=before, sample2=after)
    for place, (number, _) in enumerate(GPM_METRICS.values()):
        asked.metrics[place].metricId = number
    if nvml.call("nvmlGpmMetricsGet", byref(asked)) != SUCCESS:
        return {}
    found: dict[str, float] = {}
    for place, (name, (_, unit)) in enumerate(GPM_METRICS.items()):
        one = asked.metrics[place]
        if one.nvmlReturn == SUCCESS and 0 <= one.value < _MOST:
            found[name] = one.value * unit
    return found
