"""Coherent GPUs (Grace systems): those that share page tables with the CPU, in CDI files of their own.

``--feature-flag enable-coherent-annotations``: each whole GPU says of itself whether it is one, and beside the file of all
devices there is one of each kind, ``nvidia.com/gpu.coherent`` and ``nvidia.com/gpu.noncoherent``, so that a scheduler can
ask for the one or the other.  NVML knows it (the addressing mode is ATS); a MIG device is in neither, as in NVIDIA's.
"""

from __future__ import annotations

from gpurun.cdi.document import CdiDevice, CdiSpec, minimum_version
from gpurun.gpu.nvidia.cdi.generated import Generated, union
from gpurun.record import replace

ANNOTATION = "gpu.nvidia.com/coherent"


def by_coherence(made: Generated, all_device: bool = True) -> tuple[tuple[str, CdiSpec], ...]:
    """(what goes before the ending of the file's name, specification) of coherent GPUs, and of those that are not.

    None of a kind that no GPU is; *all_device* adds ``all`` of the kind.
    """
    found = []
    for kind, value in (("coherent", "true"), ("noncoherent", "false")):
        chosen = [d for d in made.spec.devices if (ANNOTATION, value) in d.annotations]
        if not chosen:
            continue
        devices = [replace(d, annotations=()) for d in chosen]
        if all_device and not any(d.name == "all" for d in devices):
            devices.append(CdiDevice("all", union(list(dict.fromkeys([d.edits for d in devices])))))
        spec = replace(made.spec, kind=f"{made.spec.kind}.{kind}", devices=tuple(devices))
        found.append((f".{kind}", replace(spec, version=minimum_version(spec))))
    return tuple(found)


def annotate(spec: CdiSpec, coherent: dict[str, bool]) -> CdiSpec:
    """*spec* whose devices say whether they are coherent, as far as *coherent* has their names."""
    devices = [
        replace(d, annotations=((ANNOTATION, "true" if coherent[d.name] else "false"),)) if d.name in coherent else d
        for d in spec.devices
    ]
    spec = replace(spec, devices=tuple(devices))
    return replace(spec, version=minimum_version(spec))
