"""What a container is given of devices with DRM nodes: the nodes, udev's names of exactly these, and their groups.  Pure."""

from __future__ import annotations

from gpurun.cdi.edits import ContainerEdits, DeviceNode, Link
from gpurun.errors import GpuError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.host.drm import DrmDevice
    from gpurun.gpu.host.reads import HostNode

_CARDS = "GPURUN_DRI_CARDS"


def wants_cards(env: tuple[str, ...], own_env: Mapping[str, str]) -> bool:
    """Whether a container with this ``process.env`` gets card nodes, which computing does not need.

    It does, unless ``GPURUN_DRI_CARDS=0`` is in *env*, or in gpurun's own environment *own_env* and not in *env*.
    """
    said = [entry.partition("=")[2] for entry in env if entry.startswith(f"{_CARDS}=")]
    return (said[-1] if said else own_env.get(_CARDS, "")) != "0"


def drm_edits(devices: tuple[tuple[str, str, DrmDevice], ...], cards: bool = True) -> ContainerEdits:
    """The edits for *devices*, each with what a reason calls it and its MAKER:KEY; without *cards* only the render nodes,
    if it has one.

    Raises :class:`GpuError` for a device without its nodes on this host.
    """
    nodes: list[DeviceNode] = []
    links: list[Link] = []
    for label, gpu, device in devices:
        chosen = device.nodes if cards or device.render is None else (device.render,)
        if not chosen:
            raise GpuError(f"{label}: {device.path}/drm has no device node: the driver {device.driver} has not started it")
        nodes += [host_device(node, label, gpu) for node in chosen]
        texts = {f"../{node.path.rpartition('/')[2]}" for node in chosen}
        links += [Link(path, text, f"udev's name of {label}") for path, text in device.by_path if text in texts]
    return ContainerEdits(
        device_nodes=tuple(nodes),
        links=tuple(links),
        additional_gids=groups(nodes),
        numa_nodes=tuple([device.numa_node for _, _, device in devices]),
    )


def host_device(node: HostNode, reason: str, gpu: str = "") -> DeviceNode:
    """*node*, which opens *gpu*, as a container gets it: with the host's mode and group.

    Raises :class:`GpuError` where it is not there.
    """
    if not node.exists:
        wrong = f"{node.host_path} is not the character device {node.major}:{node.minor}"
        raise GpuError(f"{reason}: {wrong}: `udevadm trigger` lets udev make it again")
    return DeviceNode(
        node.path, node.host_path, "c", node.major, node.minor, file_mode=node.mode, gid=node.gid, reason=reason, gpu=gpu
    )


def groups(nodes: list[DeviceNode]) -> tuple[int, ...]:
    """The groups that may open *nodes*, where not everybody may: their numbers are those of the host, not of the image."""
    return tuple(sorted({node.gid for node in nodes if node.gid and node.file_mode & 0o006 != 0o006}))
