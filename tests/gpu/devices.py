"""Devices as a survey of a host would have them, for tests of what is decided about them."""

from __future__ import annotations

from typing import Any

from gpurun.gpu.device import DIRECT, GpuDevice
from gpurun.gpu.host.reads import HostNode


def nvidia(
    index: int, key: str = "", links: tuple[int, ...] = (), nodes: tuple[tuple[int, int], ...] = (), **more: Any
) -> GpuDevice:
    """A GPU of NVIDIA's with that *index*, called ``GPU-<index>`` where *more* has no names; *links* are its peers."""
    names = more.pop("names", (f"GPU-{index}", str(index)))
    found = tuple([HostNode(f"/dev/nvidia{minor}", "", major, minor, True) for major, minor in nodes])
    peers = tuple([(peer, DIRECT) for peer in links])
    return GpuDevice("nvidia", key or f"0000:0{index:x}:00.0", names, index, links=peers, nodes=found, minor=index, **more)
