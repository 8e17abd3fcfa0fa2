"""What Intel's GPUs do now: memory and processes by fdinfo, temperature and the limit of power by hwmon, clocks by sysfs.

Load and power are differences of two looks (cycles, energy), which one reading does not have.
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.gpu.device import Reading
from gpurun.gpu.host.fdinfo import all_clients, memory_by_pid
from gpurun.gpu.host.hwmon import sensors
from gpurun.gpu.host.reads import read_attribute
from gpurun.gpu.intel.host import intel_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Attributes with the frequency of a GPU in MHz, below its directory: xe's, i915's.
_CLOCKS = ("tile0/gt0/freq0/act_freq", "drm/{card}/gt/gt0/rps_act_freq_mhz")
_MAX_MHZ = 10**5


def readings(own_env: Mapping[str, str], proc: str = "/proc") -> tuple[Reading, ...]:
    """A reading of each GPU that is offered, in their order; of processes those that the caller may look into."""
    gpus = intel_gpus(own_env.get("GPURUN_SYSROOT", "").rstrip("/"))
    clients = all_clients(proc) if gpus else ()
    made = []
    for gpu in gpus:
        told = sensors(gpu.drm.path)
        mine = tuple([client for client in clients if client.pci == gpu.key])
        used = memory_by_pid(mine)
        card = gpu.drm.card.path.rpartition("/")[2] if gpu.drm.card is not None else ""
        clocks = [decimal(read_attribute(f"{gpu.drm.path}/{name.format(card=card)}", 64), _MAX_MHZ) for name in _CLOCKS]
        made.append(
            Reading(
                gpu.key,
                memory_used=sum(used.values()),
                memory_total=gpu.memory if gpu.memory > 0 else None,
                temperature=told.temperature,
                power=told.power,
                power_limit=told.power_limit,
                clock=next((clock for clock in clocks if clock is not None), None),
                processes=tuple(used.items()),
            )
        )
    return tuple(made)
