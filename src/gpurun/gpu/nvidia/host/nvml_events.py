"""Waiting for the driver's word that a GPU is unhealthy: Xid errors, one JSON object a line on the helper's pipe.

Runs only in the helper process (:mod:`gpurun.gpu.nvidia.host.nvml_process`), until the reader goes or the driver fails.
"""

from __future__ import annotations

import os
from ctypes import Structure, byref, c_uint, c_ulonglong, c_void_p

from gpurun.formats.jsontext import dumps
from gpurun.gpu.nvidia.host.nvml_library import SUCCESS, Nvml, NvmlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_XID_CRITICAL = 0x8  # nvmlEventTypeXidCriticalError
_TIMEOUT, _NOT_SUPPORTED = 10, 3
_WAIT_MS = 1000
_NO_INSTANCE = 0xFFFFFFFF


class EventData(Structure):
    """``nvmlEventData_t`` of ``nvmlEventSetWait_v2``; *eventData* is the Xid."""

    _fields_ = [
        ("device", c_void_p),
        ("eventType", c_ulonglong),
        ("eventData", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    ]


def events(nvml: Nvml, out: int) -> None:
    """Write ``{"watching": [uuid, ...]}``, then ``{"uuid", "xid", "gpuInstance", "computeInstance"}`` for each event.

    After every second without one comes an empty object, so that a reader that has gone is noticed, and a driver that
    hangs as well.  *uuid* is null when the driver cannot say which GPU it was.  Raises :class:`NvmlError`.
    """
    watched = c_void_p()
    nvml.check("nvmlEventSetCreate", byref(watched))
    _write(out, {"watching": _register(nvml, watched)})
    while True:
        data = EventData()
        code = nvml.call("nvmlEventSetWait_v2", watched, byref(data), c_uint(_WAIT_MS))
        if code == _TIMEOUT:
            _write(out, {})
        elif code != SUCCESS:
            raise NvmlError("nvmlEventSetWait_v2", code, nvml.error_text(code))
        elif data.eventType == _XID_CRITICAL:
            _write(
                out,
                {
                    "uuid": nvml.text("nvmlDeviceGetUUID", c_void_p(data.device)),
                    "xid": data.eventData,
                    "gpuInstance": None if data.gpuInstanceId == _NO_INSTANCE else data.gpuInstanceId,
                    "computeInstance": None if data.computeInstanceId == _NO_INSTANCE else data.computeInstanceId,
                },
            )


def _register(nvml: Nvml, watched: c_void_p) -> list[str]:
    """Ask for the events of all GPUs; those that have none to tell are left out."""
    count = c_uint()
    nvml.check("nvmlDeviceGetCount_v2", byref(count))
    found = []
    for index in range(count.value):
        device, supported = c_void_p(), c_ulonglong()
        if nvml.call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(device)) != SUCCESS:
            continue
        if nvml.call("nvmlDeviceGetSupportedEventTypes", device, byref(supported)) != SUCCESS:
            continue
        mask = c_ulonglong(supported.value & _XID_CRITICAL)
        code = nvml.call("nvmlDeviceRegisterEvents", device, mask, watched) if mask.value else _NOT_SUPPORTED
        if code == SUCCESS:
            found.append(nvml.text("nvmlDeviceGetUUID", device) or "")
    return found


def _write(out: int, value: dict[str, Any]) -> None:
    data = dumps(value).encode() + b"\n"
    while data:
        data = data[os.write(out, data) :]
