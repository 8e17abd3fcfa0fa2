"""NVIDIA's GPUs and MIG devices as things to lease, and what NVML says of their use."""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.gpu.device import DIRECT, GpuDevice, Survey
from gpurun.gpu.host.reads import HostNode
from gpurun.gpu.nvidia.host.gpus import gpus_of
from gpurun.gpu.nvidia.host.health import unwell
from gpurun.gpu.nvidia.host.nodes import read_majors
from gpurun.gpu.nvidia.host.nvml import LEASES, find_nvml, query
from gpurun.gpu.nvidia.host.roots import bus_order, dev_root
from gpurun.gpu.nvidia.request.settings import roots_of, site_settings
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpurun.gpu.nvidia.host.gpus import Gpu
    from gpurun.gpu.nvidia.host.roots import Roots

#: Seconds that NVML may take: a GPU without persistence mode takes up to one to wake.
TIMEOUT_S = 10.0
_UVM = "/dev/nvidia-uvm"


def survey(own_env: Mapping[str, str], ask: bool = True, more: bool = False) -> Survey:
    """NVIDIA's GPUs, where the site's settings say the driver is; with *ask* NVML is asked, once; *more*: DRM nodes as well.

    Raises :class:`GpurunError` for settings that cannot be read, and for files that should be device nodes and are not.
    """
    return survey_below(roots_of(own_env, site_settings(own_env)), ask, more)


def survey_below(roots: Roots, ask: bool = True, more: bool = False) -> Survey:
    """:func:`survey` of the driver at *roots*."""
    majors = read_majors(roots)
    gpus = gpus_of(roots, dev_root(roots), majors, graphics=more)
    by_nvml: dict[tuple[int, ...], dict[str, Any]] = {}
    answer: dict[str, Any] | None = None
    problem = "" if ask else "NVML was not asked"
    if ask and gpus:
        try:
            answer = query(find_nvml(roots), LEASES, TIMEOUT_S)
            by_nvml = {bus_order(str(gpu["busId"])): gpu for gpu in answer["gpus"] if gpu.get("busId")}
        except GpuError as e:
            problem = str(e)
    ill = unwell(roots, gpus, answer, silent=ask and answer is None)
    numbers = {gpu.get("index"): bus for bus, gpu in by_nvml.items()}
    by_bus = {bus_order(gpu.bus_id): gpu.index for gpu in gpus}
    uvm = majors.get("nvidia-uvm")
    common = (HostNode(_UVM, _UVM, uvm, 0, True),) if uvm is not None else ()
    units: list[GpuDevice] = []
    computing: list[tuple[str, int]] = []
    loads: list[tuple[str, str]] = []
    for gpu in gpus:
        known = by_nvml.get(bus_order(gpu.bus_id), {})
        peers = [by_bus.get(numbers.get(n, ()), -1) for n in known.get("nvlinks") or ()]
        key = gpu.bus_id.lower()
        made = _units(gpu, known, tuple(sorted([(peer, DIRECT) for peer in peers if peer >= 0])), common)
        units += [replace(unit, unwell=ill[key]) for unit in made] if key in ill else made
        computing += [(_computed_on(key, gpu, p), p["pid"]) for p in known.get("processes") or () if p["kind"] == "compute"]
        if known.get("memoryTotal"):
            loads.append((key, _load(known)))
    limits = answer is not None and bool(answer.get("memoryLimits"))
    return Survey(tuple(units), tuple(computing), tuple(loads), problem, limits)


def _units(
    gpu: Gpu, known: dict[str, Any], links: tuple[tuple[int, int], ...], common: tuple[HostNode, ...]
) -> list[GpuDevice]:
    key = gpu.bus_id.lower()
    uuid = known.get("uuid") or gpu.uuid
    name = gpu.bus_id if "?" in uuid else uuid
    whole = GpuDevice(
        "nvidia",
        key,
        (name, key, str(gpu.index), f"nvidia:{gpu.index}"),
        gpu.index,
        gpu.model,
        numa_node=gpu.numa_node,
        memory=known.get("memoryTotal") or -1,
        nodes=(gpu.node,),
        more_nodes=gpu.drm,
        common_nodes=common,
        links=links,
        minor=gpu.minor,
    )
    made = [whole]
    identities = {(m["gpuInstance"], m["computeInstance"]): m for m in known.get("migDevices") or ()}
    for mig in gpu.mig:
        found = identities.get((mig.gi, mig.ci), {})
        name = found.get("uuid") or f"MIG-{gpu.uuid}/{mig.gi}/{mig.ci}"
        made.append(
            replace(
                whole,
                key=f"{key}/{mig.gi}/{mig.ci}",
                names=(name, f"mig-{name}"),
                memory=found.get("memoryTotal") or -1,
                parent=key,
                profile=found.get("profile") or "",
                nodes=mig.nodes,
                more_nodes=(),
                links=(),
                title=f"MIG device {mig.gi}/{mig.ci} of GPU {gpu.index}",
            )
        )
    return made


def _computed_on(key: str, gpu: Gpu, process: dict[str, Any]) -> str:
    """The key of what *process* computes on: a MIG device, where NVML says which."""
    gi, ci = process.get("gpuInstance"), process.get("computeInstance")
    return f"{key}/{gi}/{ci}" if gpu.mig and gi is not None and ci is not None else key


def _load(known: dict[str, Any]) -> str:
    gib = 1 << 30
    text = f"{(known.get('memoryUsed') or 0) / gib:.3g} of {known['memoryTotal'] / gib:.3g} GiB in use"
    rates = known.get("utilization")
    return f"{text}, load {rates['gpu']} %" if rates else text
