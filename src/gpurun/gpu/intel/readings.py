"""What Intel's GPUs do now: memory, processes and load by fdinfo, sensors by hwmon, clocks by sysfs.

Load and power are differences of two looks, a quarter of a second apart: of what the engines have worked for the clients
that are there at both, and of the energy that has been used.  Where not all processes of the host may be looked into (no
root, a pid namespace), the load is not known, and the memory in use only where the kernel counts it by cgroup (dmem).
"""

from __future__ import annotations

import time

from gpurun.cgroup.tree import UNIFIED_MOUNTPOINT
from gpurun.decimals import decimal
from gpurun.gpu.device import Reading, ReadingSource
from gpurun.gpu.host.fdinfo import distinct_clients, engine_loads, memory_by_pid
from gpurun.gpu.host.hwmon import energies, sensors
from gpurun.gpu.host.reads import names_in, read_attribute
from gpurun.gpu.intel.exporter import figures_of, labels_of
from gpurun.gpu.intel.host import intel_gpus
from gpurun.gpu.intel.survey import as_device, off_the_bus
from gpurun.gpu.leases.limits import regions_of
from gpurun.record import Record, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.gpu.host.fdinfo import Clients, DrmClient
    from gpurun.gpu.intel.host import IntelGpu

#: Attributes with the frequency of a GPU in MHz, below its directory: xe's, i915's.
_CLOCKS = ("tile0/gt0/freq0/act_freq", "drm/{card}/gt/gt0/rps_act_freq_mhz")
_MAX_MHZ, _MAX_BYTES, _MOST_CGROUPS = 10**5, 1 << 50, 4096
#: No card draws more watts: a counter that was set back tells nothing.
_MAX_WATTS = 10**4
#: Seconds between the two looks.
WINDOW_S = 0.25


def sources(sysroot: str) -> tuple[ReadingSource, ...]:
    """One of each GPU of the host below *sysroot* that is offered, in their order."""
    return tuple([ReadingSource(gpu.key, (as_device(gpu),), _reader(gpu, sysroot)) for gpu in intel_gpus(sysroot)])


class CardLook(Record):
    """*energies* are in joules by sensor, *at* in seconds of the monotonic clock; *clients* are None where not known."""

    energies: dict[str, float]
    clients: tuple[DrmClient, ...] | None
    whole: bool
    at: float


def _reader(gpu: IntelGpu, sysroot: str) -> Callable[[Callable[[], Clients | None], bool], tuple[Reading, ...]]:
    def look(clients: Callable[[], Clients | None]) -> CardLook:
        found = clients()
        mine = None if found is None else tuple([client for client in found.clients if client.pci == gpu.key])
        return CardLook(energies(gpu.drm.path), mine, found is not None and found.whole, time.monotonic())

    def read(clients: Callable[[], Clients | None], figures: bool) -> tuple[Reading, ...]:
        before = look(clients)
        if before.energies or before.clients:
            time.sleep(WINDOW_S)
        now = look(clients)
        return (reading(gpu, before, now, figures, None if now.whole else charged_memory(gpu.key, sysroot)),)

    return read


def charged_memory(pci: str, sysroot: str) -> int | None:
    """Bytes of the memory of the GPU at *pci* that the kernel counts for all cgroups below the root of their tree.

    None where it counts none: no dmem controller, or one that is not on for the first level.
    """
    root = f"{sysroot}{UNIFIED_MOUNTPOINT}"
    if not regions_of(read_attribute(f"{root}/dmem.capacity"), pci):
        return None
    texts = [read_attribute(f"{root}/{name}/dmem.current") for name in names_in(root)[:_MOST_CGROUPS]]
    sizes = [size for text in texts for _, size in regions_of(text, pci)]
    return min(sum(sizes), _MAX_BYTES) if sizes else None


def reading(gpu: IntelGpu, before: CardLook, now: CardLook, figures: bool = False, counted: int | None = None) -> Reading:
    """What *gpu* does, by two looks at it; *counted* is its memory in use where not all processes can be asked."""
    sensed, seconds = sensors(gpu.drm.path), now.at - before.at
    processes = None if now.clients is None else tuple(memory_by_pid(now.clients).items())
    energy = {name: joules - before.energies[name] for name, joules in now.energies.items() if name in before.energies}
    watts = {name: joules / seconds for name, joules in energy.items() if 0 <= joules <= _MAX_WATTS * seconds}
    loads = engine_loads(before.clients or (), now.clients or (), seconds) if now.whole and before.whole else None
    card = gpu.drm.card.path.rpartition("/")[2] if gpu.drm.card is not None else ""
    clocks = [decimal(read_attribute(f"{gpu.drm.path}/{name.format(card=card)}", 64), _MAX_MHZ) for name in _CLOCKS]
    made = Reading(
        gpu.key,
        load=None if loads is None else round(max(loads.values(), default=0.0) * 100),
        memory_used=sum([client.memory for client in distinct_clients(now.clients or ())]) if now.whole else counted,
        memory_total=gpu.memory if gpu.memory > 0 else None,
        temperature=sensed.temperature,
        power=sensed.power if sensed.power is not None else watts.get("card", next(iter(watts.values()), None)),
        power_limit=sensed.power_limit,
        clock=next((clock for clock in clocks if clock is not None), None),
        processes=processes,
        unwell=off_the_bus(gpu),
    )
    if not figures:
        return made
    return replace(made, labels=labels_of(gpu), figures=figures_of(gpu, sensed, made, watts, loads))
