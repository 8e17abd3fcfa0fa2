"""What Intel's GPUs do now: memory and processes by fdinfo, temperature and the limit of power by hwmon, clocks by sysfs.

Load and power are differences of two looks (cycles, energy), which one reading does not have.
"""

from __future__ import annotations

import posix

from gpurun.decimals import decimal
from gpurun.gpu.device import Reading
from gpurun.gpu.host.fdinfo import clients_of
from gpurun.gpu.host.reads import names_in, read_attribute
from gpurun.gpu.intel.host import intel_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Attributes with the frequency of a GPU in MHz, below its directory: xe's, i915's.
_CLOCKS = ("tile0/gt0/freq0/act_freq", "drm/{card}/gt/gt0/rps_act_freq_mhz")
_MOST_SENSORS, _MAX_MILLI, _MAX_MICRO, _MAX_MHZ = 16, 10**6, 10**10, 10**5


def readings(own_env: Mapping[str, str], proc: str = "/proc") -> tuple[Reading, ...]:
    """A reading of each GPU that is offered, in their order; of processes those that the caller may look into."""
    gpus = intel_gpus(own_env.get("GPURUN_SYSROOT", "").rstrip("/"))
    used: dict[str, dict[int, int]] = {gpu.key: {} for gpu in gpus}
    for pid in sorted([int(name) for name in posix.listdir(proc) if name.isdigit()]) if gpus else ():
        for client in clients_of(pid, proc):
            if client.pci in used:
                used[client.pci][pid] = used[client.pci].get(pid, 0) + client.memory
    made = []
    for gpu in gpus:
        sensors = _sensors(gpu.drm.path)
        temperatures = [value / 1000 for name, value in sensors.items() if name.startswith("temp")]
        limit = sensors.get("power1_max")
        card = gpu.drm.card.path.rpartition("/")[2] if gpu.drm.card is not None else ""
        clocks = [decimal(read_attribute(f"{gpu.drm.path}/{name.format(card=card)}", 64), _MAX_MHZ) for name in _CLOCKS]
        made.append(
            Reading(
                gpu.key,
                memory_used=sum(used[gpu.key].values()),
                memory_total=gpu.memory if gpu.memory > 0 else None,
                temperature=max(temperatures, default=None),
                power_limit=limit / 10**6 if limit is not None else None,
                clock=next((clock for clock in clocks if clock is not None), None),
                processes=tuple(used[gpu.key].items()),
            )
        )
    return tuple(made)


def _sensors(path: str) -> dict[str, int]:
    """Name → value of the sensors (hwmon) of the device with the directory *path*: thousandths of °C, millionths of W."""
    found: dict[str, int] = {}
    for sensor in names_in(f"{path}/hwmon")[:1]:
        names = [name for name in names_in(f"{path}/hwmon/{sensor}") if name.startswith("temp") and name.endswith("_input")]
        for name in (*names[:_MOST_SENSORS], "power1_max"):
            value = decimal(
                read_attribute(f"{path}/hwmon/{sensor}/{name}", 64), _MAX_MILLI if name.startswith("temp") else _MAX_MICRO
            )
            if value is not None:
                found[name] = value
    return found
