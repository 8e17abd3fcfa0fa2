"""gpu list: the GPUs of other makers than NVIDIA, as rows like those of NVIDIA's.

They have ``vendor``, ``key`` (what never changes while the host runs), ``driver``, ``profile`` and ``memorySize`` (bytes,
null where the driver does not tell it) as well.  They have no UUID: ``uuid`` is the name that a request may use.
"""

from __future__ import annotations

from gpurun.commands.gpu_leases import row as lease_row
from gpurun.errors import GpuError
from gpurun.gpu.device import Survey
from gpurun.gpu.leases.container_nodes import command_of
from gpurun.gpu.readings import once
from gpurun.gpu.surveys import limited_survey
from gpurun.gpu.vendors import present

#: Seconds that the drivers have to answer.
TIMEOUT_S = 5.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from gpurun.gpu.device import GpuDevice
    from gpurun.gpu.host.reads import HostNode
    from gpurun.gpu.leases.lease import Lease

    Row = dict[str, Any]


def other_makers(env: Mapping[str, str]) -> Survey:
    """What this host has of other makers than NVIDIA; ``problem`` says of which that is not known."""
    units: list[GpuDevice] = []
    problems = []
    for row in [row for row in present(env) if row.name != "nvidia"]:
        try:
            units += limited_survey(row, env, ask=False).units
        except GpuError as e:
            problems.append(str(e))
    return Survey(tuple(units), problem="; ".join(problems))


def maker_row(
    unit: GpuDevice,
    ids: Callable[[tuple[HostNode, ...]], list[str]],
    holders: Callable[[tuple[HostNode, ...]], list[Row]],
    leases: tuple[Lease, ...],
) -> Row:
    """The row of *unit*; *ids* and *holders* say which containers have nodes."""
    return {
        "index": unit.index,
        "uuid": unit.name,
        "busId": unit.gpu_key,
        "minor": unit.minor,
        "numaNode": unit.numa_node,
        "model": unit.model,
        "node": unit.nodes[0].host_path if unit.nodes else "",
        "migDevices": [],
        "containers": ids(unit.nodes),
        "holders": holders(unit.nodes),
        "leases": [lease_row(lease) for lease in leases if unit.key in [one.key for one in lease.units]],
        "problem": unit.unwell or None,
        "vendor": unit.vendor,
        "key": unit.key,
        "driver": unit.driver,
        "profile": unit.profile or None,
        "memorySize": unit.memory if unit.memory > 0 else None,
    }


def add_readings(rows: list[Row], env: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Put what their drivers measure into *rows* of other makers: as NVML's figures, and ``reading``.

    *say* is called for drivers that do not answer in time; ``problem`` has it as well.
    """
    if not any("vendor" in row for row in rows):
        return
    readings = once(env, TIMEOUT_S, say)
    for row in [row for row in rows if (row.get("vendor", ""), row.get("key", "")) in readings]:
        one = readings[row["vendor"], row["key"]]
        row["problem"] = row["problem"] or one.problem or one.unwell or None
        total = one.memory_total
        row["memory"] = {"total": total, "used": one.memory_used} if total is not None else None
        row["utilization"] = {"gpu": one.load} if one.load is not None else None
        row["processes"] = [
            {"pid": pid, "command": command_of(pid) or None, "container": None, "memory": size}
            for pid, size in one.processes or ()
        ]
        row["reading"] = {
            "temperature": one.temperature,
            "power": one.power,
            "powerLimit": one.power_limit,
            "clock": one.clock,
        }
