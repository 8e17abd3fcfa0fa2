"""What only NVML knows of GPUs; asked only when a request cannot be answered without it."""

from __future__ import annotations

from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.gpu.nvidia.host.roots import Roots

    Resolver = Callable[[], tuple["GpuIdentity", ...]]


class MigIdentity(Record):
    """One MIG device: *index* is NVML's number of it on its GPU, *gi* and *ci* those of its instances."""

    index: int
    gi: int
    ci: int
    uuid: str  # MIG-...
    profile: str = ""  # such as 1g.5gb


class GpuIdentity(Record):
    """One GPU, by its *bus_id* (domain of any width); what NVML does not tell is empty.

    *brand* is as ``NVIDIA_REQUIRE_*`` has it, *arch* the compute capability (``9.0``), *cuda* the driver's (``12.4``);
    *coherent* whether it shares page tables with the CPU.
    """

    bus_id: str
    uuid: str = ""
    brand: str = ""
    arch: str = ""
    cuda: str = ""
    mig: tuple[MigIdentity, ...] = ()
    coherent: bool | None = None


def ask(roots: Roots) -> tuple[GpuIdentity, ...]:
    """What NVML says of the GPUs of this host.

    Takes up to a second for every GPU without persistence mode; raises :class:`GpuError`.
    """
    from gpurun.gpu.nvidia.host.nvml import DEVICES, find_nvml, query

    answer = query(find_nvml(roots), DEVICES)
    cuda = str(answer.get("cudaVersion") or "")
    return tuple(
        [
            GpuIdentity(
                str(gpu["busId"]),
                str(gpu.get("uuid") or ""),
                str(gpu.get("brand") or ""),
                str(gpu.get("computeCapability") or ""),
                cuda,
                tuple([_mig(mig) for mig in gpu.get("migDevices") or ()]),
                gpu.get("coherent"),
            )
            for gpu in answer["gpus"]
            if gpu.get("busId")
        ]
    )


def _mig(mig: dict[str, object]) -> MigIdentity:
    index, gi, ci = [int(str(mig[name])) for name in ("index", "gpuInstance", "computeInstance")]
    return MigIdentity(index, gi, ci, str(mig["uuid"]), str(mig.get("profile") or ""))
