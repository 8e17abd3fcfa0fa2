"""What NVIDIA's programs print about a host: procfs first, NVML for brand and architecture, which may be missing."""

from __future__ import annotations

from gpurun.errors import GpurunError
from gpurun.gpu.nvidia.host.nvml import DEVICES, find_nvml, query
from gpurun.gpu.nvidia.request.require import properties
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.gpu.nvidia.host.roots import Roots


class NvmlAnswer(Record):
    """What NVML said: *gpus* by bus id in lower case, *cuda* the version; *problem* says why it said nothing."""

    gpus: dict[str, dict[str, Any]]
    cuda: str = ""
    problem: str = ""


def ask_nvml(roots: Roots) -> NvmlAnswer:
    """NVML's answer for the driver below *roots*; raises nothing."""
    try:
        answer = query(find_nvml(roots), DEVICES)
    except GpurunError as e:
        return NvmlAnswer({}, "", str(e))
    gpus = {str(gpu["busId"]).lower(): gpu for gpu in answer["gpus"] if gpu.get("busId")}
    return NvmlAnswer(gpus, str(answer.get("cudaVersion") or ""))


def cuda_version(driver_version: str, nvml: NvmlAnswer) -> str:
    """The highest CUDA version of the driver: NVML's word, else what its branch is known for."""
    known = properties(driver_version)
    return nvml.cuda or (".".join([str(n) for n in known.cuda]) if known.cuda and not known.cuda_or_newer else "unknown")
