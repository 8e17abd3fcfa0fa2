"""The memory of a GPU that a cgroup may have, set by NVML (CUDA 13.4, driver 615): only in the helper process.

What such a limit means is in NVIDIA's manual of MPS, "Memory Partitioning".  A kernel with cgroup v2's dmem controller keeps
it, and then NVML writes the files of the cgroup and of those above it; else the driver keeps it itself.
"""

from __future__ import annotations

from ctypes import Structure, byref, c_char_p, c_ulonglong, c_void_p

from gpurun.gpu.nvidia.host.nvml_library import Nvml, NvmlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SET_LIMITS = "nvmlDeviceSetMemoryLimits_v1"


class MemoryLimits(Structure):
    """``nvmlSetMemoryLimits_v1_t``: *nameSpace* is the path of the cgroup's directory, the limits are bytes."""

    _fields_ = [("nameSpace", c_char_p), ("softLimit", c_ulonglong), ("hardLimit", c_ulonglong)]


def set_limits(nvml: Nvml, cgroup: str, words: list[str]) -> dict[str, Any]:
    """Set the limits of *cgroup* that *words* are: UUID, soft and hard limit of each GPU.  Raises :class:`NvmlError`."""
    for uuid, soft, hard in zip(words[::3], words[1::3], words[2::3], strict=True):
        device = c_void_p()
        limits = MemoryLimits(cgroup.encode("utf-8", "surrogateescape"), int(soft), int(hard))
        for function, arguments in (
            ("nvmlDeviceGetHandleByUUID", (c_char_p(uuid.encode()), byref(device))),
            (SET_LIMITS, (device, byref(limits))),
        ):
            code = nvml.call(function, *arguments)
            if code:
                raise NvmlError(f"{function} of {uuid}", code, nvml.error_text(code))
    return {"limited": words[::3]}
