"""NVML in the helper process (:mod:`gpurun.gpu.nvidia.host.nvml_process`), and who the GPUs are.

A small part of NVML by ``ctypes``: every function may be missing from an old library and every question may be refused by
an old card, and then the answer is None.  Structures and numbers as of NVIDIA's ``nvml.h``.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, byref, c_char, c_char_p, c_int, c_uint, c_ulonglong, c_void_p

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUCCESS, NOT_SUPPORTED, INSUFFICIENT_SIZE, FUNCTION_NOT_FOUND = 0, 3, 7, 13
_NOT_AVAILABLE = (1 << 64) - 1  # a process's memory that the driver will not tell
_NO_INSTANCE = 0xFFFFFFFF
P2P_CAPS_NVLINK, P2P_STATUS_OK = 2, 0  # ``nvmlGpuP2PCapsIndex_t``, ``nvmlGpuP2PStatus_t``
ADDRESSING_ATS = 2  # ``nvmlDeviceAddressingModeType_t``: one set of page tables for CPU and GPU

#: ``nvmlBrandType_t`` in the words of NVIDIA_REQUIRE_* (lower case, no separators).
BRANDS = {
    0: "unknown", 1: "quadro", 2: "tesla", 3: "nvs", 4: "grid", 5: "geforce", 6: "titan", 7: "nvidiavapps", 8: "nvidiavpc",
    9: "nvidiavcs", 10: "nvidiavws", 11: "nvidiacloudgaming", 12: "quadrortx", 13: "nvidiartx", 14: "nvidia",
    15: "geforcertx", 16: "titanrtx", 17: "nvidiadla", 18: "nvidiavgamedev", 19: "nvidianpu",
}  # fmt: skip
ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell",
    13: "Rubin",
}  # fmt: skip


class PciInfo(Structure):
    """``nvmlPciInfo_t`` (version 3 of the call)."""

    _fields_ = [
        ("busIdLegacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("busId", c_char * 32),
    ]


class Memory(Structure):
    """``nvmlMemory_t``, bytes."""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Utilization(Structure):
    """``nvmlUtilization_t``, percent."""

    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class ProcessInfo(Structure):
    """``nvmlProcessInfo_t`` of the calls _v2 and _v3."""

    _fields_ = [
        ("pid", c_uint),
        ("usedGpuMemory", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    ]


class DeviceAttributes(Structure):
    """``nvmlDeviceAttributes_t``: the share of a GPU that a MIG device has."""

    _fields_ = [
        ("multiprocessorCount", c_uint),
        ("sharedCopyEngineCount", c_uint),
        ("sharedDecoderCount", c_uint),
        ("sharedEncoderCount", c_uint),
        ("sharedJpegCount", c_uint),
        ("sharedOfaCount", c_uint),
        ("gpuInstanceSliceCount", c_uint),
        ("computeInstanceSliceCount", c_uint),
        ("memorySizeMB", c_ulonglong),
    ]


class AddressingMode(Structure):
    """``nvmlDeviceAddressingMode_v1_t``; *version* is the size and, above it, the number of the structure."""

    _fields_ = [("version", c_uint), ("value", c_uint)]


class NvmlError(Exception):
    """A call failed; the text is NVML's own."""

    def __init__(self, function: str, code: int, text: str) -> None:
        super().__init__(f"{text} ({function}: {code})")
        self.code = code


class Nvml:
    """The opened library."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)

    def call(self, name: str, *arguments: Any) -> int:
        """The code that function *name* returns; FUNCTION_NOT_FOUND when the library has no such function."""
        function = getattr(self._library, name, None)
        return FUNCTION_NOT_FOUND if function is None else int(function(*arguments))

    def has(self, name: str) -> bool:
        """Whether the library has the function *name*."""
        return hasattr(self._library, name)

    def check(self, name: str, *arguments: Any) -> None:
        """:meth:`call`; raises :class:`NvmlError` unless it succeeds."""
        code = self.call(name, *arguments)
        if code != SUCCESS:
            raise NvmlError(name, code, self.error_text(code))

    def error_text(self, code: int) -> str:
        """NVML's own text for the return code *code*."""
        function = getattr(self._library, "nvmlErrorString", None)
        if function is None:
            return "error"
        function.restype = c_char_p
        return (function(c_int(code)) or b"error").decode("utf-8", "replace")

    def text(self, name: str, *arguments: Any) -> str | None:
        """The text that function *name* writes."""
        made = ctypes.create_string_buffer(96)  # NVML_DEVICE_UUID_V2_BUFFER_SIZE is the longest of those asked for
        if self.call(name, *arguments, made, c_uint(len(made))) != SUCCESS:
            return None
        return made.value.decode("utf-8", "replace")

    def number(self, name: str, *arguments: Any) -> int | None:
        """The unsigned number that function *name* writes."""
        made = c_uint()
        return made.value if self.call(name, *arguments, byref(made)) == SUCCESS else None


def describe(nvml: Nvml, usage: bool, links: bool = False) -> dict[str, Any]:
    """The whole answer, with *links* also what NVLink connects; raises :class:`NvmlError` when no GPU can be counted."""
    cuda = nvml.number("nvmlSystemGetCudaDriverVersion_v2")
    count = c_uint()
    nvml.check("nvmlDeviceGetCount_v2", byref(count))
    return {
        "driverVersion": nvml.text("nvmlSystemGetDriverVersion"),
        "nvmlVersion": nvml.text("nvmlSystemGetNVMLVersion"),
        "memoryLimits": nvml.has("nvmlDeviceSetMemoryLimits_v1"),
        "cudaVersion": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        "gpus": [
            _gpu(nvml, index, usage) | ({"nvlinks": _nvlinks(nvml, index, count.value)} if links else {})
            for index in range(count.value)
        ],
    }


def _nvlinks(nvml: Nvml, index: int, count: int) -> list[int]:
    """The GPUs that *index* reaches by NVLink, over a switch as well."""
    device, peer, status = c_void_p(), c_void_p(), c_uint()
    if nvml.call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(device)) != SUCCESS:
        return []
    found = []
    for other in range(count):
        if other == index or nvml.call("nvmlDeviceGetHandleByIndex_v2", c_uint(other), byref(peer)) != SUCCESS:
            continue
        code = nvml.call("nvmlDeviceGetP2PStatus", device, peer, c_uint(P2P_CAPS_NVLINK), byref(status))
        if code == SUCCESS and status.value == P2P_STATUS_OK:
            found.append(other)
    return found


def _gpu(nvml: Nvml, index: int, usage: bool) -> dict[str, Any]:
    device = c_void_p()
    try:
        nvml.check("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(device))
    except NvmlError as e:
        return {"index": index, "error": str(e)}
    brand = nvml.number("nvmlDeviceGetBrand", device)
    architecture = nvml.number("nvmlDeviceGetArchitecture", device)
    mode, pending = c_uint(), c_uint()
    has_mig = nvml.call("nvmlDeviceGetMigMode", device, byref(mode), byref(pending)) == SUCCESS
    gpu: dict[str, Any] = {
        "index": index,
        "uuid": nvml.text("nvmlDeviceGetUUID", device),
        "busId": _bus_id(nvml, device),
        "minor": nvml.number("nvmlDeviceGetMinorNumber", device),
        "name": nvml.text("nvmlDeviceGetName", device),
        "brand": None if brand is None else BRANDS.get(brand, "unknown"),
        "architecture": ARCHITECTURES.get(architecture or 0),
        "computeCapability": _compute_capability(nvml, device),
        "coherent": _coherent(nvml, device),
        "migMode": bool(mode.value) if has_mig else None,
        "migModePending": bool(pending.value) if has_mig else None,
        "migDevices": _mig_devices(nvml, device, usage) if has_mig and mode.value else [],
    }
    return gpu | (_usage(nvml, device) if usage else {})


def _bus_id(nvml: Nvml, device: c_void_p) -> str | None:
    """As procfs has it: four digits of domain unless there are more, lower case, with the function."""
    info = PciInfo()
    if nvml.call("nvmlDeviceGetPciInfo_v3", device, byref(info)) != SUCCESS:
        return None
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def _compute_capability(nvml: Nvml, device: c_void_p) -> str | None:
    major, minor = c_int(), c_int()
    if nvml.call("nvmlDeviceGetCudaComputeCapability", device, byref(major), byref(minor)) != SUCCESS:
        return None
    return f"{major.value}.{minor.value}"


def _coherent(nvml: Nvml, device: c_void_p) -> bool | None:
    """Whether the GPU uses the CPU's page tables; one that cannot be asked for its mode has but its own."""
    mode = AddressingMode(ctypes.sizeof(AddressingMode) | 1 << 24)
    code = nvml.call("nvmlDeviceGetAddressingMode", device, byref(mode))
    if code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
        return False
    return bool(mode.value == ADDRESSING_ATS) if code == SUCCESS else None


def _mig_devices(nvml: Nvml, device: c_void_p, usage: bool) -> list[dict[str, Any]]:
    found = []
    for index in range(nvml.number("nvmlDeviceGetMaxMigDeviceCount", device) or 0):
        mig = c_void_p()
        if nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", device, c_uint(index), byref(mig)) != SUCCESS:
            continue  # a hole: instances keep their places when others are removed
        item = {
            "index": index,
            "uuid": nvml.text("nvmlDeviceGetUUID", mig),
            "gpuInstance": nvml.number("nvmlDeviceGetGpuInstanceId", mig),
            "computeInstance": nvml.number("nvmlDeviceGetComputeInstanceId", mig),
            "profile": _profile(nvml, mig),
        }
        found.append(item | (memory_of(nvml, mig) if usage else {}))
    return found


def _profile(nvml: Nvml, mig: c_void_p) -> str | None:
    """``1g.10gb``, or ``1c.2g.20gb`` for one compute slice of a larger instance."""
    name = nvml.text("nvmlDeviceGetName", mig) or ""
    if " MIG " in name:
        return name.rpartition(" MIG ")[2]
    share = DeviceAttributes()
    if nvml.call("nvmlDeviceGetAttributes_v2", mig, byref(share)) != SUCCESS:
        return None
    compute, slices = share.computeInstanceSliceCount, share.gpuInstanceSliceCount
    part = f"{compute}c." if compute < slices else ""
    return f"{part}{slices}g.{(share.memorySizeMB + 1023) // 1024}gb"


def memory_of(nvml: Nvml, device: c_void_p) -> dict[str, Any]:
    """``memoryTotal`` and ``memoryUsed`` of a GPU or MIG device, bytes."""
    memory = Memory()
    if nvml.call("nvmlDeviceGetMemoryInfo", device, byref(memory)) != SUCCESS:
        return {"memoryTotal": None, "memoryUsed": None}
    return {"memoryTotal": memory.total, "memoryUsed": memory.used}


def _usage(nvml: Nvml, device: c_void_p) -> dict[str, Any]:
    load = Utilization()
    known = nvml.call("nvmlDeviceGetUtilizationRates", device, byref(load)) == SUCCESS
    return memory_of(nvml, device) | {
        "utilization": {"gpu": load.gpu, "memory": load.memory} if known else None,
        "processes": _processes(nvml, device, "Compute") + _processes(nvml, device, "Graphics"),
    }


def _processes(nvml: Nvml, device: c_void_p, kind: str) -> list[dict[str, Any]]:
    room = 64
    while room <= 1 << 16:  # there may be more by the time the next call is made
        count, table = c_uint(room), (ProcessInfo * room)()
        code = nvml.call(f"nvmlDeviceGet{kind}RunningProcesses_v3", device, byref(count), table)
        if code == FUNCTION_NOT_FOUND:  # before driver 510
            code = nvml.call(f"nvmlDeviceGet{kind}RunningProcesses_v2", device, byref(count), table)
        if code != INSUFFICIENT_SIZE:
            break
        room = max(count.value, room) * 2
    if code != SUCCESS:
        return []
    return [
        {
            "pid": entry.pid,
            "kind": kind.lower(),
            "memory": None if entry.usedGpuMemory == _NOT_AVAILABLE else entry.usedGpuMemory,
            "gpuInstance": None if entry.gpuInstanceId == _NO_INSTANCE else entry.gpuInstanceId,
            "computeInstance": None if entry.computeInstanceId == _NO_INSTANCE else entry.computeInstanceId,
        }
        for entry in table[: count.value]
    ]
