"""What containers use of their GPUs: asked of the makers' drivers, each in a process of its own, and never for long."""

from __future__ import annotations

from gpurun.errors import GpurunError
from gpurun.gpu.device import units_of
from gpurun.gpu.nvidia.host.device_numbers import NVIDIA_MAJOR
from gpurun.gpu.nvidia.host.nvml import USAGE, find_nvml, query
from gpurun.gpu.nvidia.host.roots import bus_order, roots_from_environment
from gpurun.gpu.nvidia.request.settings import read_settings, settings_path
from gpurun.gpu.readings import Readers
from gpurun.gpu.vendors import VENDORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    from gpurun.gpu.device import Measured
    from gpurun.gpu.vendors import GivenGpu

_NVML = VENDORS[0]
#: Seconds that a report of what a container uses may wait for a driver.
TIMEOUT_S = 3.0


class GpuUsage:
    """Asks the drivers again and again; *own_env* is gpurun's environment, and *say* is called with what is not known, once.

    NVML is not asked again after it has failed: each report would wait for it.
    """

    def __init__(self, own_env: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._env, self._say = own_env, say
        self._nvml = True
        self._readers = Readers(own_env, TIMEOUT_S, self._tell)

    def look(self, given: Collection[GivenGpu]) -> GpuLook:
        """What the drivers of the GPUs *given* say now."""
        by_nvml = [one for one in given if _is_nvmls(one)]
        gpus: list[dict[str, Any]] | None = None
        if self._nvml and by_nvml:
            try:
                roots = roots_from_environment(self._env, read_settings(settings_path(self._env)).driver_root)
                gpus = query(find_nvml(roots), USAGE, TIMEOUT_S)["gpus"]
            except GpurunError as e:
                self._nvml = False
                self._tell(str(e))
        measured: tuple[Measured, ...] = ()
        if len(by_nvml) < len(given):
            measured = self._readers.read().measured
        return GpuLook(gpus, measured)

    def _tell(self, text: str) -> None:
        self._say(f"no numbers of the GPUs: {text}")


class GpuLook:
    """What drivers have said at one moment: *gpus* as NVML does, None where it was not asked or did not answer."""

    def __init__(self, gpus: list[dict[str, Any]] | None, measured: tuple[Measured, ...]) -> None:
        self._gpus, self._measured = gpus, measured

    def rows(self, given: Collection[GivenGpu], pids: Collection[int]) -> list[dict[str, Any]] | None:
        """An entry of each of the GPUs *given*, and what the host's processes *pids* have of it; None where no driver has
        said anything of them.

        A GPU is found by its key, and by the number of its node only where the record has no key: a driver that is bound
        again may give the number to another GPU.
        """
        keys = {one.gpu for one in given if one.gpu}
        numbers = frozenset([one.number for one in given if not one.gpu])
        by_number = {unit.qualified for unit in units_of(tuple([one.unit for one in self._measured]), numbers)}
        rows = [of_measured(one, pids) for one in self._measured if one.unit.qualified in keys | by_number]
        if self._gpus is None:
            return rows or None
        buses = {bus_order(_bus(key)) for key in keys if key.startswith(f"{_NVML.name}:")}
        return [of_gpu(gpu, pids) for gpu in self._gpus if _is_one_of(gpu, buses, numbers)] + rows


def _is_nvmls(one: GivenGpu) -> bool:
    """Whether NVML is asked of that GPU."""
    return one.gpu.startswith(f"{_NVML.name}:") if one.gpu else one.major == NVIDIA_MAJOR


def _bus(key: str) -> str:
    """The PCI address in MAKER:ADDRESS, or in MAKER:ADDRESS/PART."""
    return key.partition(":")[2].partition("/")[0]


def _is_one_of(
    gpu: Mapping[str, Any], buses: Collection[tuple[int, ...]], numbers: Collection[tuple[int, int]]
) -> bool:  # fmt: skip
    bus = str(gpu.get("busId") or "")
    return (bool(bus) and bus_order(bus) in buses) or (NVIDIA_MAJOR, gpu.get("minor")) in numbers


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
        memory["container"] = _own(made, [(one["pid"], one.get("memory")) for one in processes], pids)
    made["memory"] = {key: value for key, value in memory.items() if value is not None}
    if gpu.get("utilization") is not None:
        made["utilization"] = gpu["utilization"]
    return made


def of_measured(one: Measured, pids: Collection[int]) -> dict[str, Any]:
    """The same of a GPU that is read from files: ``vendor``, ``key`` and ``index`` as well, ``temperature`` in °C,
    ``power`` and ``powerLimit`` in watts, ``clock`` in MHz."""
    unit, reading = one.unit, one.reading
    made: dict[str, Any] = {
        "uuid": unit.name, "name": unit.model, "minor": unit.minor, "vendor": unit.vendor, "key": unit.key,
        "index": unit.index,
    }  # fmt: skip
    if reading.problem:
        return {**made, "error": reading.problem}
    memory = {"total": reading.memory_total, "used": reading.memory_used}
    if reading.processes is not None:
        memory["container"] = _own(made, list(reading.processes), pids)
    made["memory"] = {key: value for key, value in memory.items() if value is not None}
    if reading.load is not None:
        made["utilization"] = {"gpu": reading.load}
    figures = (
        ("temperature", reading.temperature), ("power", reading.power), ("powerLimit", reading.power_limit),
        ("clock", reading.clock),
    )  # fmt: skip
    return made | {key: value for key, value in figures if value is not None}


def _own(made: dict[str, Any], processes: list[tuple[int, int | None]], pids: Collection[int]) -> int | None:
    """Put into *made* how many of *processes* (pid, bytes) are of *pids*; the bytes that they have."""
    own = {pid: size for pid, size in processes if pid in pids}
    made["processes"] = len(own)
    known = [size for size in own.values() if size is not None]
    return sum(known) if known or not own else None
