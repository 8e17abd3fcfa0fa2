"""What a container uses of its GPUs: asked of NVML, through its process of its own, and never for long."""

from __future__ import annotations

from gpurun.gpu.nvidia.host.device_numbers import NVIDIA_MAJOR
from gpurun.gpu.nvidia.host.nvml import USAGE, find_nvml, query
from gpurun.gpu.nvidia.host.roots import roots_from_environment
from gpurun.gpu.nvidia.request.settings import read_settings, settings_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

#: Seconds that a report of what a container uses may wait for the driver.
TIMEOUT_S = 3.0


def gpu_usage(
    numbers: Collection[tuple[int, int]], pids: Collection[int], own_env: Mapping[str, str]
) -> list[dict[str, Any]]:
    """What each GPU with a device node of *numbers* (major, minor) does, and what the host's processes *pids* have of it.

    Raises :class:`GpurunError` in a sentence when the driver cannot be asked or does not answer within TIMEOUT_S seconds.
    """
    settings = read_settings(settings_path(own_env))
    roots = roots_from_environment(own_env, settings.driver_root)
    answer = query(find_nvml(roots), USAGE, TIMEOUT_S)
    return [of_gpu(gpu, pids) for gpu in answer["gpus"] if (NVIDIA_MAJOR, gpu.get("minor")) in numbers]


def of_gpu(gpu: Mapping[str, Any], pids: Collection[int]) -> dict[str, Any]:
    """The entry of one GPU: memory in bytes, utilisation in percent; what the driver does not say is left out.

    ``memory.container`` is the sum over the container's processes; the driver says of some only that they are there.
    """
    made: dict[str, Any] = {key: gpu[key] for key in ("uuid", "name", "minor") if gpu.get(key) is not None}
    if gpu.get("error") is not None:
        return {**made, "error": gpu["error"]}
    processes = gpu.get("processes")
    memory = {"total": gpu.get("memoryTotal"), "used": gpu.get("memoryUsed")}
    if processes is not None:
        own = {one["pid"]: one.get("memory") for one in processes if one["pid"] in pids}
        made["processes"] = len(own)
        known = [size for size in own.values() if size is not None]
        memory["container"] = sum(known) if known or not own else None
    made["memory"] = {key: value for key, value in memory.items() if value is not None}
    if gpu.get("utilization") is not None:
        made["utilization"] = gpu["utilization"]
    return made
