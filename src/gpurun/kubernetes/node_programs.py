"""Programs of the node that a pod has called: NVIDIA's, and the node's own gpurun."""

from __future__ import annotations

from gpurun.errors import GpurunError
from gpurun.gpu.nvidia.mps.node_service import NodeProgram
from gpurun.gpu.nvidia.mps.programs import Program, find_driver_program
from gpurun.kubernetes.specs import NodeHost


def driver_root_of(host: NodeHost) -> str:
    """The driver's root as the node has it; empty where the driver is the node's own."""
    if not host.roots.driver_root.strip("/"):
        return ""
    return host.roots.sysroot.removeprefix(host.root) + host.roots.driver_root.rstrip("/")


def nvidia_smi(host: NodeHost, path: str = "") -> Program | None:
    """``nvidia-smi``: of the driver's root, else of the node's directories *path*.  Raises :class:`GpurunError`."""
    return find_driver_program("nvidia-smi", driver_root_of(host), path, host.root)


def own_program(host: NodeHost) -> NodeProgram:
    """The gpurun that starts daemons of the node: from a pod the one that CDI files name for their hooks.

    Raises :class:`GpurunError` where they name another program.
    """
    if not host.root:
        return NodeProgram()
    if len(host.hook) < 2:
        raise GpurunError(
            f"MPS daemons are kept by the node's gpurun, and the program for CDI hooks is {host.hook[0]}: name the node's "
            "gpurun by --hook-path"
        )
    return NodeProgram((host.hook[0],), host.root)
