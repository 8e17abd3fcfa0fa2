"""What AMD's GPUs do now: load, memory, clocks and errors by amdgpu's files of sysfs, sensors by hwmon, processes by KFD and
fdinfo.

A partition has none of these files.  The GPU that it is of has one temperature, one power and one set of clocks for all;
its load and its memory in use are not those of a partition, of which only KFD's processes and fdinfo are known.
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.gpu.amd.exporter import figures_of, labels_of
from gpurun.gpu.amd.health import error_counts, error_files, uncorrectable
from gpurun.gpu.amd.host import DRIVER, amd_gpus, kfd_node
from gpurun.gpu.amd.processes import computing
from gpurun.gpu.amd.survey import as_device
from gpurun.gpu.device import Reading, ReadingSource
from gpurun.gpu.host.drm import devices_of_driver
from gpurun.gpu.host.fdinfo import memory_by_pid
from gpurun.gpu.host.hwmon import Sensors, sensors
from gpurun.gpu.host.pci import OFF_THE_BUS, is_off_the_bus
from gpurun.gpu.host.reads import read_attribute
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.gpu.amd.host import AmdGpu
    from gpurun.gpu.host.fdinfo import Clients, DrmClient

_MAX_MHZ, _MAX_BYTES = 10**5, 1 << 50


def sources(sysroot: str) -> tuple[ReadingSource, ...]:
    """One of each GPU of the host below *sysroot* that computes, in AMD's order; it reads all partitions of a GPU."""
    gpus = amd_gpus(sysroot)
    kfd = kfd_node(sysroot) if gpus else None
    paths = {device.name: device.path for device in devices_of_driver(sysroot, DRIVER)} if gpus else {}
    boards: dict[str, list[AmdGpu]] = {}
    for gpu in gpus:
        boards.setdefault(gpu.pci, []).append(gpu)
    return tuple(
        [
            ReadingSource(
                pci, tuple([as_device(gpu, kfd) for gpu in mine]), _reader(sysroot, paths.get(pci, ""), tuple(mine))
            )
            for pci, mine in boards.items()
        ]
    )


class Board(Record):
    """What the files of one PCI device say; *path* is its directory."""

    path: str
    load: int | None
    memory_used: int | None
    memory_total: int | None
    clock: int | None
    memory_clock: int | None
    errors: tuple[tuple[str, int], ...]
    sensors: Sensors
    unwell: str


def _reader(
    sysroot: str, path: str, gpus: tuple[AmdGpu, ...]
) -> Callable[[Callable[[], Clients | None], bool], tuple[Reading, ...]]:
    def read(look: Callable[[], Clients | None], figures: bool) -> tuple[Reading, ...]:
        board = _board(path or gpus[0].drm.path)
        found = look()
        kfd: dict[str, dict[int, int]] = {}
        for key, pid, size in computing(sysroot, gpus):
            kfd.setdefault(key, {})[pid] = size
        made = []
        for gpu in gpus:
            one = _reading(gpu, board, found.clients if found is not None else (), kfd.get(gpu.key, {}))
            if figures:
                found_figures = figures_of(gpu, board.path, board.sensors, one, first=gpu is gpus[0])
                one = replace(one, labels=labels_of(gpu, board.path), figures=found_figures)
            made.append(one)
        return tuple(made)

    return read


def _board(path: str) -> Board:
    errors = error_counts({block: read_attribute(file, 256) for block, file in error_files(path).items()})
    return Board(
        path,
        _number(f"{path}/gpu_busy_percent", 100),
        _number(f"{path}/mem_info_vram_used", _MAX_BYTES),
        _number(f"{path}/mem_info_vram_total", _MAX_BYTES),
        _clock(f"{path}/pp_dpm_sclk"),
        _clock(f"{path}/pp_dpm_mclk"),
        errors,
        sensors(path),
        OFF_THE_BUS if is_off_the_bus(path) else uncorrectable(errors),
    )


def _reading(gpu: AmdGpu, board: Board, clients: tuple[DrmClient, ...], kfd: dict[int, int]) -> Reading:
    minors = {node.minor for node in gpu.drm.nodes}
    mine = tuple([client for client in clients if client.pci == gpu.pci and client.minor in minors])
    used = memory_by_pid(mine)
    # KFD's memory is in fdinfo as well on newer kernels: the larger of both is what the process has.
    processes = {pid: max(used.get(pid, 0), kfd.get(pid, 0)) for pid in sorted({*used, *kfd})}
    whole, sensors = gpu.partition < 0, board.sensors
    return Reading(
        gpu.key,
        load=board.load if whole else None,
        memory_used=board.memory_used if whole else sum(processes.values()),
        memory_total=board.memory_total if whole else (gpu.memory if gpu.memory > 0 else None),
        temperature=sensors.temperature,
        power=sensors.power,
        power_limit=sensors.power_limit,
        clock=board.clock,
        memory_clock=board.memory_clock,
        errors=board.errors,
        processes=tuple(processes.items()),
        unwell=board.unwell,
    )


def _number(path: str, most: int) -> int | None:
    return decimal(read_attribute(path, 64), most)


def _clock(path: str) -> int | None:
    """The MHz of the line with a star: ``1: 1700Mhz *``."""
    for line in read_attribute(path).splitlines():
        if line.endswith("*"):
            return decimal(line.partition(":")[2].strip(" *").lower().removesuffix("mhz"), _MAX_MHZ)
    return None
