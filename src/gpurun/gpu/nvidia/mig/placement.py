"""Where the instances of a GPU go, so that all that are asked for have room: pure.

NVML puts an instance where it likes, and what is asked for later may then have no room: mig-parted tries one order after the
other on the GPU itself.  The places are known before, so they are chosen before anything is changed.
"""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.gpu.nvidia.mig.profile import MigProfile
from gpurun.gpu.nvidia.mig.state import GiProfile, Instance, MigGpu

_CORES = "multiprocessor"
_STEPS = 100_000  # of the search; eight memory slices take a few dozen


def arrange(gpu: MigGpu, wanted: tuple[tuple[MigProfile, int], ...]) -> tuple[Instance, ...]:
    """Instances of *gpu* with exactly the devices *wanted*, (profile, how many), the largest first.

    Devices that are parts of an instance share one as long as it has room.  Raises :class:`GpuError` for a profile that the
    GPU does not have, and for more than there is room for.
    """
    parts: list[tuple[GiProfile, list[int]]] = []
    order = sorted(wanted, key=lambda pair: (-pair[0].slices, -pair[0].memory, -pair[0].compute, pair[0].name))
    for profile, count in order:
        kind = _kind(gpu, profile)
        for _ in range(count):
            room = [used for one, used in parts if one is kind and sum(used) + profile.compute <= kind.slices]
            if room:
                room[0].append(profile.compute)
            else:
                parts.append((kind, [profile.compute]))
    parts.sort(key=lambda part: (-_size(part[0]), -part[0].slices))  # the large ones have the fewest places
    places = _places(gpu, [kind for kind, _ in parts])
    if places is None:
        listed = ", ".join([f"{count} of {profile.name}" for profile, count in order])
        raise GpuError(f"GPU {gpu.index} has no room for {listed} together")
    return tuple([Instance(kind.number, *place, tuple(used)) for (kind, used), place in zip(parts, places, strict=True)])


def _kind(gpu: MigGpu, profile: MigProfile) -> GiProfile:
    for kind in gpu.profiles:
        if kind.slices == profile.slices and gpu.named(kind, profile.compute) == profile:
            return kind
    known = ", ".join([gpu.named(kind, kind.slices).name for kind in gpu.profiles])
    raise GpuError(f"GPU {gpu.index} has no MIG profile {profile.name}, it has: {known}")


def _size(kind: GiProfile) -> int:
    return max([size for _, size in kind.placements], default=0)


def _places(gpu: MigGpu, kinds: list[GiProfile]) -> list[tuple[int, int]] | None:
    """A place for each of *kinds* so that none overlap; None where there is no such way."""
    if any(sum(1 for one in kinds if one is kind) > kind.most for kind in kinds):
        return None
    # Of the engines the driver knows best; the multiprocessors are fewer than the memory slices have room for.
    whole = max([dict(kind.counts).get(_CORES, 0) for kind in gpu.profiles], default=0)
    if sum([dict(kind.counts).get(_CORES, 0) for kind in kinds]) > whole:
        return None
    chosen: list[tuple[int, int]] = []
    steps = [_STEPS]

    def place(taken: int) -> bool:
        steps[0] -= 1
        if len(chosen) == len(kinds) or steps[0] < 0:
            return len(chosen) == len(kinds)
        kind = kinds[len(chosen)]
        for start, size in kind.placements:
            mask = ((1 << size) - 1) << start
            if mask & taken:
                continue
            chosen.append((start, size))
            if place(taken | mask):
                return True
            chosen.pop()
        return False

    return chosen if place(0) else None
