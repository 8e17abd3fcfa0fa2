"""Whether each GPU works, under one name for the GPUs of all makers; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpurun.gpu.device import Measured
from gpurun.gpu.nvidia.host.health import FATAL_XIDS, of_answer
from gpurun.kubernetes.makers import NVIDIA
from gpurun.metrics.samples import Sample

NAME = "gpurun_gpu_healthy"
KIND, TEXT = "gauge", "1: healthy; 0: it cannot work, or its driver does not answer for it."


def health_samples(
    answer: Mapping[str, Any] | None, measured: Iterable[Measured], host: str, xids: Mapping[str, int] | None = None
) -> list[Sample]:
    """One of each GPU in NVML's *answer* (None: there is none) and of each device *measured*.

    *xids* has the last Xid of each GPU by its UUID, None where there is no watch for them.
    """
    made = _by_nvml(answer, host, xids or {}) if answer is not None else []
    for one in measured:
        ill = one.unit.unwell or one.reading.problem or one.reading.unwell
        made.append(_sample(one.unit.vendor, one.unit.index, one.unit.key, host, not ill))
    return made


def _by_nvml(answer: Mapping[str, Any], host: str, xids: Mapping[str, int]) -> list[Sample]:
    buses = [str(gpu.get("busId") or "") for gpu in answer["gpus"]]
    ill = of_answer([bus for bus in buses if bus], answer)
    made = []
    for gpu, bus in zip(answer["gpus"], buses, strict=True):
        fatal = xids.get(str(gpu.get("uuid") or ""), 0) in FATAL_XIDS
        well = gpu.get("error") is None and bus.lower() not in ill and not fatal
        domain, _, rest = bus.lower().partition(":")
        made.append(_sample(NVIDIA, gpu["index"], f"{domain[-4:]}:{rest}" if rest else "", host, well))
    return made


def _sample(vendor: str, index: int, key: str, host: str, well: bool) -> Sample:
    labels = (("vendor", vendor), ("gpu", str(index)), ("key", key), ("Hostname", host))
    return Sample(NAME, KIND, TEXT, labels, float(well))
