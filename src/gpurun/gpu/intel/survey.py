"""Intel's GPUs and virtual functions as things to lease, and which processes compute on them."""

from __future__ import annotations

import posix

from gpurun.gpu.device import GpuDevice, Survey
from gpurun.gpu.host.pci import OFF_THE_BUS, is_off_the_bus
from gpurun.gpu.intel.host import divided_gpus, intel_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.intel.gaudi import Gaudi
    from gpurun.gpu.intel.host import IntelGpu

#: Engines of which a client that computes has used some time: those of xe, of i915.
_COMPUTE = ("ccs", "compute")


def survey(own_env: Mapping[str, str], ask: bool = True, more: bool = False) -> Survey:
    """Intel's GPUs; with *ask* processes are looked at; *more* changes nothing: all nodes are known."""
    gpus = intel_gpus(own_env.get("GPURUN_SYSROOT", "").rstrip("/"))
    return Survey(tuple([as_device(gpu) for gpu in gpus]), _computing() if ask and gpus else ())


def divided(own_env: Mapping[str, str]) -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]:
    """(what it is called, the words that name it, what its virtual functions are called) of each GPU that is divided."""
    sysroot = own_env.get("GPURUN_SYSROOT", "").rstrip("/")
    gpus = intel_gpus(sysroot)
    return tuple(
        [
            (
                f"Intel's GPU {whole.name}",
                (whole.name, *[node.path.rpartition("/")[2] for node in whole.nodes]),
                tuple([f"{gpu.key} (intel:{gpu.index})" for gpu in gpus if gpu.drm.physfn == whole.name]),
            )
            for whole in divided_gpus(sysroot)
        ]
    )


def accelerators(own_env: Mapping[str, str]) -> tuple[Gaudi, ...]:
    """Those of this host, which are not leased and no GPUs."""
    from gpurun.gpu.intel import gaudi

    return gaudi.accelerators(own_env.get("GPURUN_SYSROOT", "").rstrip("/"))


def accelerators_given(env: tuple[str, ...], own_env: Mapping[str, str]) -> tuple[Gaudi, ...]:
    """Those of this host that a container with that ``process.env`` was given when it was made."""
    from gpurun.gpu.intel.gaudi import VARIABLE

    values = [entry.partition("=")[2].strip() for entry in env if entry.startswith(f"{VARIABLE}=")]
    words = [word.strip() for word in values[-1].split(",")] if values else []
    known = accelerators(own_env) if any(words) else ()
    return known if words == ["all"] else tuple([one for one in known if str(one.index) in words])


def as_device(gpu: IntelGpu) -> GpuDevice:
    """*gpu* as leases and lists have it; its render node is its own, as all that compute open it."""
    drm = gpu.drm
    own = drm.render or drm.card
    nodes = (own,) if own is not None else ()
    absent = [node.host_path for node in drm.nodes if not node.exists]
    return GpuDevice(
        "intel",
        gpu.key,
        (gpu.key, f"intel:{gpu.index}", *[node.path.rpartition("/")[2] for node in drm.nodes]),
        gpu.index,
        gpu.model,
        drm.driver,
        drm.numa_node,
        drm.pcie_root,
        gpu.memory,
        profile="vf" if drm.physfn else "",
        nodes=nodes,
        more_nodes=tuple([node for node in drm.nodes if node is not own]),
        unwell=f"its device nodes are not there: {', '.join(absent)}" if absent else off_the_bus(gpu),
        title=gpu.label,
        minor=own.minor if own is not None else 0,
    )


def off_the_bus(gpu: IntelGpu) -> str:
    """That *gpu* does not answer any more, where it does not; else nothing."""
    return OFF_THE_BUS if is_off_the_bus(gpu.drm.path) else ""


def _computing() -> tuple[tuple[str, int], ...]:
    """(key, pid) of the processes that have computed and still have the GPU open, as far as they are ours to see."""
    from gpurun.gpu.host.fdinfo import clients_of

    found = []
    for pid in sorted([int(name) for name in posix.listdir("/proc") if name.isdigit()]):
        for client in clients_of(pid):
            used = [name for name, spent in client.busy if spent] + [name for name, spent, _ in client.cycles if spent]
            if any(name in _COMPUTE for name in used):
                found.append((client.pci, pid))
    return tuple(found)
