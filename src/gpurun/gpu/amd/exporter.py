"""Figures of AMD's GPUs under the names of AMD's device-metrics-exporter, as far as sysfs has them.

Names, units and labels are those of its version 1.5 (its table of metrics).  Of a GPU that is divided the figures of the
board are given only for its first partition: for each, they would add up to several boards.
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.gpu.device import Figure
from gpurun.gpu.host.reads import read_attribute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpurun.gpu.amd.host import AmdGpu
    from gpurun.gpu.device import Reading
    from gpurun.gpu.host.hwmon import Sensors

#: What its names begin with, and the label that says which host it is.
PREFIXES, HOST_LABEL = ("gpu_", "pcie_"), "hostname"
#: amdgpu's blocks that count errors → how the exporter calls them.
_BLOCKS = {
    "sdma": "sdma", "gfx": "gfx", "mmhub": "mmhub", "athub": "athub", "pcie_bif": "bif", "hdp": "hdp",
    "xgmi_wafl": "xgmi_wafl", "df": "df", "smn": "smn", "sem": "sem", "mp0": "mp0", "mp1": "mp1", "fuse": "fuse",
    "umc": "umc", "mca": "mca", "vcn": "vcn", "jpeg": "jpeg", "ih": "ih", "mpio": "mpio",
}  # fmt: skip
#: Labels of amdgpu's temperatures → names.
_TEMPERATURES = {"edge": "gpu_edge_temperature", "junction": "gpu_junction_temperature", "mem": "gpu_memory_temperature"}
#: Prefixes of the files with the memory of a kind → what stands in the names.
_MEMORIES = {"vram": "vram", "vis_vram": "visible_vram", "gtt": "gtt"}
_MIB, _MAX_BYTES, _MAX_MHZ = 1 << 20, 1 << 50, 10**5

#: The figure that counts the maker's GPUs, parts of divided ones each.
TOTAL = "gpu_nodes_total"
#: Name → (kind, help).
FIELDS: dict[str, tuple[str, str]] = {
    TOTAL: ("gauge", "GPUs of this host, and parts of GPUs."),
    "gpu_health": ("gauge", "1: healthy, 0: unhealthy."),
    "gpu_gfx_activity": ("gauge", "Graphics engine usage (in %)."),
    "gpu_umc_activity": ("gauge", "Memory engine usage (in %)."),
    "gpu_power_usage": ("gauge", "Power usage (in W)."),
    "gpu_average_package_power": ("gauge", "Average socket power (in W)."),
    "gpu_package_power": ("gauge", "Current socket power (in W)."),
    "gpu_edge_temperature": ("gauge", "Edge temperature (in C)."),
    "gpu_junction_temperature": ("gauge", "Junction (hotspot) temperature (in C)."),
    "gpu_memory_temperature": ("gauge", "Memory temperature (in C)."),
    "gpu_clock": ("gauge", "Clock frequency (in MHz)."),
    "gpu_min_clock": ("gauge", "Lowest clock frequency (in MHz)."),
    "gpu_max_clock": ("gauge", "Highest clock frequency (in MHz)."),
    "pcie_speed": ("gauge", "PCIe speed (in GT/s)."),
    "pcie_max_speed": ("gauge", "Highest PCIe speed (in GT/s)."),
    "pcie_replay_count": ("gauge", "PCIe replays."),
    **{
        f"gpu_{which}_{name}": ("gauge", f"{which.capitalize()} {text} memory (in MB).")
        for name, text in (("vram", "VRAM"), ("visible_vram", "visible VRAM"), ("gtt", "GTT"))
        for which in ("total", "used", "free")
    },
    "gpu_ecc_correct_total": ("gauge", "Correctable errors since the driver was loaded."),
    "gpu_ecc_uncorrect_total": ("gauge", "Uncorrectable errors since the driver was loaded."),
    **{
        f"gpu_ecc_{kind}_{name}": ("gauge", f"{kind.capitalize()}able errors of {name.upper()}.")
        for name in _BLOCKS.values()
        for kind in ("correct", "uncorrect")
    },
}


def labels_of(gpu: AmdGpu, path: str) -> tuple[tuple[str, str], ...]:
    """Those that all figures of *gpu* have; *path* is the directory of its PCI device."""
    compute, _, memory = gpu.profile.partition("_")
    number = read_attribute(f"{path}/product_number", 256)
    return (
        ("gpu_id", str(gpu.index)),
        ("serial_number", read_attribute(f"{path}/serial_number", 256)),
        ("card_series", gpu.model),
        ("card_model", number or gpu.model),
        ("gpu_partition_id", str(max(gpu.partition, 0))),
        ("gpu_compute_partition_type", compute or "none"),
        ("gpu_memory_partition_type", memory or "none"),
    )


def figures_of(gpu: AmdGpu, path: str, sensors: Sensors, reading: Reading, first: bool) -> tuple[Figure, ...]:
    """The figures of *gpu*, in the order of FIELDS; the *first* of a board tells what is of all of it."""
    found = dict(_memory(path)) if gpu.partition < 0 else {}
    found["gpu_health"] = float(not reading.unwell)
    if gpu.partition >= 0 and reading.memory_total is not None and reading.memory_used is not None:
        found |= _amounts("vram", reading.memory_total, reading.memory_used)
    clocks: list[Figure] = []
    if first:
        found |= dict(_of_board(path, sensors, reading, gpu.partition < 0))
        kinds = (("system", reading.clock), ("memory", reading.memory_clock))
        clocks = [
            Figure("gpu_clock", float(value), (("clock_index", str(index)), ("clock_type", kind)))
            for index, (kind, value) in enumerate(kinds)
            if value is not None
        ]
    made = [Figure(name, float(value)) for name, value in found.items()]
    order = list(FIELDS)
    return tuple(sorted([*made, *clocks], key=lambda figure: order.index(figure.name)))


def _of_board(path: str, sensors: Sensors, reading: Reading, whole: bool) -> Iterator[tuple[str, float]]:
    numbers = {
        "gpu_gfx_activity": reading.load if whole else None,
        "gpu_umc_activity": decimal(read_attribute(f"{path}/mem_busy_percent", 64), 100) if whole else None,
        "gpu_power_usage": sensors.power,
        "gpu_average_package_power": sensors.power_average,
        "gpu_package_power": sensors.power_now,
        "pcie_speed": _speed(f"{path}/current_link_speed"),
        "pcie_max_speed": _speed(f"{path}/max_link_speed"),
        "pcie_replay_count": decimal(read_attribute(f"{path}/pcie_replay_count", 64)),
    }
    clocks = _clocks(f"{path}/pp_dpm_sclk")
    if clocks:
        numbers |= {"gpu_min_clock": min(clocks), "gpu_max_clock": max(clocks)}
    numbers |= {_TEMPERATURES[label]: value for label, value in sensors.temperatures if label in _TEMPERATURES}
    for kind in ("correct", "uncorrect"):
        counts = {key.removeprefix(f"{kind}_"): count for key, count in reading.errors if key.startswith(f"{kind}_")}
        numbers |= {f"gpu_ecc_{kind}_{name}": counts[block] for block, name in _BLOCKS.items() if block in counts}
        numbers[f"gpu_ecc_{kind}_total"] = sum(counts.values()) if counts else None
    yield from [(name, value) for name, value in numbers.items() if value is not None]


def _memory(path: str) -> Iterator[tuple[str, float]]:
    for prefix, name in _MEMORIES.items():
        total, used = (
            decimal(read_attribute(f"{path}/mem_info_{prefix}_{word}", 64), _MAX_BYTES) for word in ("total", "used")
        )
        if total is not None and used is not None:
            yield from _amounts(name, total, used).items()


def _amounts(name: str, total: int, used: int) -> dict[str, float]:
    """Whole MiB, which AMD calls MB."""
    return {
        f"gpu_total_{name}": total // _MIB, f"gpu_used_{name}": used // _MIB,
        f"gpu_free_{name}": max(total - used, 0) // _MIB,
    }  # fmt: skip


def _speed(path: str) -> float | None:
    """GT/s of a text like ``16.0 GT/s PCIe``."""
    whole, point, rest = read_attribute(path, 64).partition(" ")[0].partition(".")
    tenths = decimal(rest[:1], 9) if point else 0
    number = decimal(whole, 1 << 10)
    return None if number is None or tenths is None else number + tenths / 10


def _clocks(path: str) -> list[int]:
    """The MHz of all lines: ``1: 1700Mhz *``."""
    texts = [line.partition(":")[2].strip(" *").lower() for line in read_attribute(path).splitlines()]
    found = [decimal(text.removesuffix("mhz"), _MAX_MHZ) for text in texts if text.endswith("mhz")]
    return [value for value in found if value is not None]
