"""By which numbers and names the device nodes of GPUs are known."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpurun.cdi.edits import DeviceNode
    from gpurun.ns.mount_plan import DeviceStep
    from gpurun.oci.config import Device

#: The node of a GPU has the number 195:0 to 195:253, what follows are the driver's own.  LANANA has registered it.
NVIDIA_MAJOR, MAX_GPU_MINOR = 195, 253


def node_minors(nodes: Iterable[Device | DeviceNode | DeviceStep]) -> tuple[int, ...]:
    """The minors of the GPUs among device *nodes*, each once: by their numbers, for they may have any path."""
    found = [n.minor for n in nodes if n.major == NVIDIA_MAJOR and n.minor <= MAX_GPU_MINOR and n.type in ("c", "u")]
    return tuple(dict.fromkeys(found))


#: What the kernel has given these numbers to (Documentation/admin-guide/devices.txt), of what is usually in a container.
_NAMES = {
    (1, 3): "null", (1, 5): "zero", (1, 7): "full", (1, 8): "random", (1, 9): "urandom", (5, 0): "tty", (5, 1): "console",
    (5, 2): "ptmx", (10, 200): "net/tun", (10, 229): "fuse",
    (NVIDIA_MAJOR, 254): "nvidia-modeset", (NVIDIA_MAJOR, 255): "nvidiactl",
}  # fmt: skip
_PTS_MAJORS = range(136, 144)


def device_name(kind: str, major: int, minor: int | None) -> str:
    """The path that the device *major*:*minor* (None: any) of *kind* ``c`` or ``b`` usually has; empty where none is known.

    Only of numbers that never change: those of nvidia-uvm are given out when the module is loaded.
    """
    if kind not in ("c", "u"):
        return ""
    if major in _PTS_MAJORS:
        return "/dev/pts/*" if minor is None else f"/dev/pts/{minor}"
    if minor is None:
        return "/dev/nvidia*" if major == NVIDIA_MAJOR else ""
    if major == NVIDIA_MAJOR and minor <= MAX_GPU_MINOR:
        return f"/dev/nvidia{minor}"
    name = _NAMES.get((major, minor), "")
    return f"/dev/{name}" if name else ""
