"""What the GPUs of a host can be divided into, and what they are divided into, as NVML tells."""

from __future__ import annotations

from gpurun.gpu.nvidia.host.nvml import MIG, query
from gpurun.gpu.nvidia.mig.profile import MigProfile, profile_of
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Seconds that NVML may take to tell: eight GPUs without persistence mode take a second each.
TIMEOUT_S = 60.0


class GiProfile(Record):
    """A kind of GPU instance that a GPU can have.

    *number* is NVML's (NVML_GPU_INSTANCE_PROFILE_*), *memory* in MiB, *most* how many there can be, *placements* are
    (first memory slice, how many), *counts* what one takes of the GPU (NVML's name, how many).
    """

    number: int
    slices: int
    memory: int
    most: int
    placements: tuple[tuple[int, int], ...]
    counts: tuple[tuple[str, int], ...] = ()


class Instance(Record):
    """A GPU instance: *profile* is its number, *start* and *size* its memory slices, *compute* the slices of its parts.

    *gi* is its id, -1 for one that is not made yet.
    """

    profile: int
    start: int
    size: int
    compute: tuple[int, ...]
    gi: int = -1


class MigGpu(Record):
    """A GPU.  *device* and *subsystem* are its PCI ids (device << 16 | vendor), *memory* in bytes.

    *mode* and *pending* (what the mode is after a reset) are None for a GPU without MIG.  *problem* is why nothing is known.
    """

    index: int
    uuid: str = ""
    bus_id: str = ""
    device: int = 0
    subsystem: int = 0
    memory: int = 0
    mode: bool | None = None
    pending: bool | None = None
    profiles: tuple[GiProfile, ...] = ()
    instances: tuple[Instance, ...] = ()
    problem: str = ""

    @property
    def tells(self) -> bool:
        """Whether the driver tells what the GPU can be divided into, and where: some drivers do not while MIG is off."""
        return bool(self.profiles) and () not in [one.placements for one in self.profiles]

    def profile(self, number: int) -> GiProfile | None:
        """The profile with NVML's *number*."""
        return next((one for one in self.profiles if one.number == number), None)

    def named(self, one: GiProfile, compute: int) -> MigProfile:
        """What a device with *compute* slices of an instance of that profile is called on this GPU."""
        return profile_of(one.number, compute, one.slices, one.memory, self.memory)

    def devices(self) -> dict[MigProfile, int]:
        """The MIG devices that there are: profile → how many."""
        found: dict[MigProfile, int] = {}
        for instance in self.instances:
            kind = self.profile(instance.profile)
            if kind is None:
                continue
            for compute in instance.compute:
                name = self.named(kind, compute)
                found[name] = found.get(name, 0) + 1
        return found


def read_state(library: str) -> tuple[MigGpu, ...]:
    """The GPUs, in NVML's order, which is that of mig-parted.  Raises :class:`GpuError`."""
    return tuple([gpu_of(answer) for answer in query(library, MIG, TIMEOUT_S)["gpus"]])


def gpu_of(answer: dict[str, Any]) -> MigGpu:
    """A GPU as :func:`gpurun.gpu.nvidia.host.nvml_mig.mig_state` tells of it."""
    if answer.get("error"):
        return MigGpu(answer["index"], problem=str(answer["error"]))
    return MigGpu(
        answer["index"], answer["uuid"], answer["busId"], answer["pciDevice"], answer["pciSubsystem"], answer["memory"],
        None if answer["mode"] is None else bool(answer["mode"]),
        None if answer["pending"] is None else bool(answer["pending"]),
        tuple([_profile_of(one) for one in answer["profiles"]]),
        tuple([instance_of(one) for one in answer["instances"]]),
    )  # fmt: skip


def _profile_of(answer: dict[str, Any]) -> GiProfile:
    places = tuple([(int(start), int(size)) for start, size in answer["placements"]])
    return GiProfile(
        answer["number"], answer["slices"], answer["memory"], answer["instances"], places, tuple(answer["counts"].items())
    )


def instance_of(answer: dict[str, Any]) -> Instance:
    """An instance as NVML tells of it."""
    compute = tuple([part["slices"] for part in answer["compute"]])
    return Instance(answer["profile"], answer["start"], answer["size"], compute, answer["id"])
