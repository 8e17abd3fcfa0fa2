"""From what the GPUs are and what a configuration wants to what is to be done: pure.

A plan depends only on what is there.  A change that was cut off at any point is gone on with by making the plan anew, and
the plan of a host that is as it should be is empty.
"""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.gpu.nvidia.mig.config import MigEntry
from gpurun.gpu.nvidia.mig.placement import arrange
from gpurun.gpu.nvidia.mig.state import Instance, MigGpu
from gpurun.record import Record, replace


class MigChange(Record):
    """What is done to one GPU, in this order: *destroy* (ids of instances), *mode* (None: it stays), *create*.

    With a new mode NVML may reset the GPU, so *create* is planned anew after it.
    """

    index: int
    uuid: str
    bus_id: str
    destroy: tuple[int, ...] = ()
    mode: bool | None = None
    create: tuple[Instance, ...] = ()

    def words(self, first: bool) -> tuple[str, ...]:
        """The words for :func:`gpurun.gpu.nvidia.host.nvml.change_mig`: *first* up to the mode, then what comes after it."""
        if first:
            mode = () if self.mode is None else (f"{self.uuid} mode {int(self.mode)}",)
            return (*[f"{self.uuid} destroy {gi}" for gi in self.destroy], *mode)
        words = [(one.profile, one.start, one.size, *one.compute) for one in self.create]
        return tuple([f"{self.uuid} create {' '.join([str(number) for number in numbers])}" for numbers in words])


def plan_config(gpus: tuple[MigGpu, ...], entries: tuple[MigEntry, ...], mode_only: bool = False) -> tuple[MigChange, ...]:
    """What makes *gpus* be as *entries* say, of which the last one that means a GPU counts; GPUs that none means stay.

    *mode_only*: only whether MIG is on.  Raises :class:`GpuError` for what cannot be done.
    """
    for entry in entries:
        for index in entry.devices or ():
            if index >= len(gpus):
                raise GpuError(f"{entry.where}.devices: there is no GPU {index}, the host has {len(gpus)}")
    changes = []
    for gpu in gpus:
        meant = [entry for entry in entries if _means(entry, gpu)]
        change = _change(gpu, meant[-1], mode_only) if meant else None
        if change is not None:
            changes.append(change)
    return tuple(changes)


def _means(entry: MigEntry, gpu: MigGpu) -> bool:
    if gpu.problem:  # its model is not known: it could be one of those meant
        return entry.devices is None or gpu.index in entry.devices
    return entry.means(gpu.index, gpu.device, gpu.subsystem)


def _change(gpu: MigGpu, entry: MigEntry, mode_only: bool) -> MigChange | None:
    if gpu.problem:
        raise GpuError(f"GPU {gpu.index} cannot be asked what it is divided into: {gpu.problem}")
    if gpu.mode is None:
        if entry.enabled and entry.devices is not None:
            raise GpuError(f"{entry.where}: GPU {gpu.index} ({gpu.bus_id}) cannot be divided by MIG")
        return None
    made = MigChange(gpu.index, gpu.uuid, gpu.bus_id)
    here = tuple([one.gi for one in gpu.instances])
    if gpu.mode != entry.enabled or gpu.pending != entry.enabled:
        # Where MIG is on already, and only a change to off was pending, what there is need not go; mig-parted has it go too.
        create = arrange(gpu, entry.profiles) if entry.enabled and gpu.tells and not mode_only else ()
        return replace(made, destroy=here, mode=entry.enabled, create=create)
    if mode_only or not entry.enabled:
        return None
    whole = all(one.compute for one in gpu.instances)  # one without a part is left of a change that was cut off
    if whole and gpu.devices() == dict(entry.profiles):
        return None
    return replace(made, destroy=here, create=arrange(gpu, entry.profiles))


def plan_restore(gpus: tuple[MigGpu, ...], before: tuple[MigGpu, ...]) -> tuple[MigChange, ...]:
    """What makes *gpus* be again as they were *before*: the same modes, the same instances at the same places.

    GPUs of *before* that are gone are left out.
    """
    now = {gpu.uuid: gpu for gpu in gpus if not gpu.problem}
    changes = []
    for old in before:
        gpu = now.get(old.uuid)
        if gpu is None or gpu.mode is None or old.mode is None:
            continue
        made = MigChange(gpu.index, gpu.uuid, gpu.bus_id)
        here, wanted = tuple([one.gi for one in gpu.instances]), tuple([replace(one, gi=-1) for one in old.instances])
        if gpu.mode != old.mode or gpu.pending != old.pending:
            changes.append(replace(made, destroy=here, mode=old.pending, create=wanted))
        elif sorted(map(_place, gpu.instances)) != sorted(map(_place, wanted)):
            changes.append(replace(made, destroy=here, create=wanted))
    return tuple(changes)


def _place(one: Instance) -> tuple[int, int, int, tuple[int, ...]]:
    return one.start, one.size, one.profile, tuple(sorted(one.compute))
