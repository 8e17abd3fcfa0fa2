"""Figures of Intel's GPUs under the names of Intel's XPU Manager 2, as far as sysfs and fdinfo have them.

Names, units and labels are those that its OpenTelemetry metrics have in Prometheus.  ``hw_id``, a UUID of Level Zero's
there, is the PCI address here, as ``pci_bdf`` is; ``hw_name`` counts the figures of a kind, in the kernel's order.
"""

from __future__ import annotations

from gpurun.gpu.device import Figure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.device import Reading
    from gpurun.gpu.host.hwmon import Sensors
    from gpurun.gpu.intel.host import IntelGpu

#: What its names begin with; no label says which host it is.
PREFIXES, HOST_LABEL = ("hw_",), ""
#: Labels of hwmon → where Level Zero says that the sensor is; others have their own words.
_PLACES = {"pkg": "gpu", "vram": "memory"}
_POWER_PLACES = {"pkg": "package"}
#: The drivers' kinds of engines → Level Zero's groups of engines.
_TASKS = {
    "rcs": "render-all", "render": "render-all", "ccs": "compute-all", "compute": "compute-all",
    "bcs": "copy-all", "copy": "copy-all", "vcs": "media-all", "video": "media-all",
    "vecs": "media-all", "video-enhance": "media-all",
}  # fmt: skip

#: No figure counts the maker's GPUs.
TOTAL = ""
#: Name → (kind, help).
FIELDS: dict[str, tuple[str, str]] = {
    "hw_gpu_info": ("gauge", "The GPU; 1."),
    "hw_gpu_utilization_ratio": ("gauge", "Ratio of time that engines of a kind work; all: of the busiest kind."),
    "hw_memory_size_bytes": ("gauge", "Memory of the device."),
    "hw_memory_usage_bytes": ("gauge", "Memory of the device that processes have."),
    "hw_memory_utilization_ratio": ("gauge", "Ratio of the memory that processes have."),
    "hw_energy_joules_total": ("counter", "Energy since the driver was loaded."),
    "hw_power_watts": ("gauge", "Power draw."),
    "hw_power_limit_watts": ("gauge", "Limit of the power draw."),
    "hw_frequency_hertz": ("gauge", "Clock frequency."),
    "hw_temperature_celsius": ("gauge", "Temperature."),
}


def labels_of(gpu: IntelGpu) -> tuple[tuple[str, str], ...]:
    """Those that all figures of *gpu* have."""
    return (("hw_id", gpu.key), ("pci_bdf", gpu.key))


def figures_of(
    gpu: IntelGpu, sensors: Sensors, reading: Reading, watts: Mapping[str, float], loads: Mapping[str, float] | None
) -> tuple[Figure, ...]:
    """The figures of *gpu*; *watts* are by sensor, *loads* (0 to 1) by engine, None where they are not known."""
    memory = (("hw_name", "mem-1"), ("hw_memory_location", "device"))
    made = [Figure("hw_gpu_info", 1.0, _facts(gpu))]
    made += [
        Figure("hw_gpu_utilization_ratio", value, (("hw_name", f"engine-{index}-{task}"), ("hw_gpu_task", task)))
        for index, (task, value) in enumerate(_by_task(loads).items(), 1)
    ]
    total, used = reading.memory_total, reading.memory_used
    if total is not None:
        made.append(Figure("hw_memory_size_bytes", float(total), memory))
    if used is not None:
        made.append(Figure("hw_memory_usage_bytes", float(used), memory))
    if total and used is not None:
        made.append(Figure("hw_memory_utilization_ratio", min(used / total, 1.0), memory))
    for index, (label, joules) in enumerate(sensors.energies, 1):
        place = (("hw_name", f"power-{index}"), ("hw_sensor_location", _POWER_PLACES.get(label, label)))
        made.append(Figure("hw_energy_joules_total", joules, place))
        if label in watts:
            made.append(Figure("hw_power_watts", watts[label], place))
    if sensors.power_limit is not None:
        made.append(
            Figure("hw_power_limit_watts", sensors.power_limit, (("hw_name", "power-1"), ("hw_sensor_location", "card")))
        )
    if reading.clock is not None:
        words = (("hw_name", "freq-1"), ("hw_frequency_domain", "gpu"), ("aggregation", "avg"))
        made.append(Figure("hw_frequency_hertz", reading.clock * 1e6, words))
    for index, (label, value) in enumerate(sensors.temperatures, 1):
        sensor = (("hw_name", f"temp-{index}"), ("hw_sensor_location", _PLACES.get(label, label)), ("statistic", "max"))
        made.append(Figure("hw_temperature_celsius", value, sensor))
    return tuple(made)


def _facts(gpu: IntelGpu) -> tuple[tuple[str, str], ...]:
    return (
        ("hw_name", f"gpu-{gpu.index + 1}"),
        ("hw_model", gpu.model),
        ("hw_vendor", "Intel(R) Corporation"),
        ("pci_vendor_id", f"{gpu.drm.vendor:04x}"),
        ("pci_device_id", f"{gpu.drm.device:04x}"),
    )


def _by_task(loads: Mapping[str, float] | None) -> dict[str, float]:
    """Of several kinds of engines that are one group the busiest; ``all`` is there whenever the load is known."""
    if loads is None:
        return {}
    found = {"all": max(loads.values(), default=0.0)}
    for engine, load in loads.items():
        task = _TASKS.get(engine)
        if task is not None:
            found[task] = max(found.get(task, 0.0), load)
    return found
