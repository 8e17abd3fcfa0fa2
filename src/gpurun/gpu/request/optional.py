"""Containers that start without GPUs where the host has none: ``GPURUN_GPU_OPTIONAL``, for every maker's."""

from __future__ import annotations

from gpurun.cdi.edits import ContainerEdits
from gpurun.gpu.vendors import GO_TRUE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.errors import GpuError

OPTIONAL = "GPURUN_GPU_OPTIONAL"


def may_be_without(env: tuple[str, ...]) -> bool:
    """Whether ``process.env`` says that the container starts without GPUs on a host that has none; the last one counts."""
    said = [entry.partition("=")[2] for entry in env if entry.startswith(f"{OPTIONAL}=")]
    return bool(said) and said[-1] in GO_TRUE


def without(error: GpuError) -> ContainerEdits:
    """What a container gets that may be without the GPUs of a maker, in place of *error*: the warning, and nothing else."""
    return ContainerEdits(warnings=(f"{OPTIONAL} lets the container start without these GPUs: {error}",))
