"""Who holds a container to the memory of its share of a GPU.  Pure.

NVIDIA's driver from 615 on (NVML) and the kernel's dmem controller (AMD's and Intel's drivers) hold a cgroup to it, whatever
its programs do.  MPS holds each program to it that does not object, and the threads of a share in any case.
"""

from __future__ import annotations

from gpurun.decimals import decimal
from gpurun.errors import GpuError
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.request.share import Share

#: Who it is: what ``shares.memory`` of the site's file says.
AUTO, NVML, MPS = "auto", "nvml", "mps"
KEEPERS = (AUTO, NVML, MPS)


class Keeper(Record):
    """*nvml*: the driver limits the cgroup; *mps*: a daemon serves the container.  *why_not* is why NVML does not."""

    nvml: bool
    mps: bool
    why_not: str = ""


def keeper_of(memory: int, threads: int, wish: str, obstacles: tuple[str, ...], where: str) -> Keeper:
    """Who keeps a share of *memory* bytes and *threads* percent of an NVIDIA GPU (0: not named).

    *wish* is one of :data:`KEEPERS`, *obstacles* are what stands against NVML, "" for each that does not.  Raises
    :class:`GpuError` naming *where* for a site that wants only NVML, and cannot have it.
    """
    why_not = "the site's shares.memory says so" if wish == MPS else next((text for text in obstacles if text), "")
    if memory and why_not and wish == NVML:
        raise GpuError(f"{where}: this site has a share's memory limited by the driver (shares.memory), and {why_not}")
    nvml = bool(memory and not why_not)
    return Keeper(nvml, bool(threads or not nvml), why_not if memory else "")


def kernel_limits(share: Share, label: str, address: str, capacity: str) -> tuple[tuple[str, int], ...]:
    """What the kernel is to hold a container with *share* to, of the GPU *label* at PCI *address*: (region, bytes).

    *capacity* is what ``dmem.capacity`` says.  Raises :class:`GpuError` where nothing would hold the container to it.
    """
    if share.threads:
        raise GpuError(f"{share.source}: nothing limits the threads of {label}: ask only for a share of its memory")
    regions = tuple([(name, size) for name, size in regions_of(capacity, address) if size])
    if not regions:
        raise GpuError(
            f"{share.source}: nothing limits the memory of {label}: the kernel's dmem controller does, with Linux 6.14 or "
            "newer and the driver amdgpu or xe, and it does not list this GPU"
        )
    return region_limits(share.memory, regions)


def regions_of(capacity: str, bus_id: str) -> tuple[tuple[str, int], ...]:
    """The regions of video memory of the GPU at PCI address *bus_id* in the text of ``dmem.capacity``: (name, bytes).

    The kernel names them ``drm/0000:03:00.0/vram`` (amdgpu), ``drm/0000:03:00.0/vram0`` and ``vram1`` (xe, one a tile).
    """
    found: dict[str, int] = {}
    start = f"drm/{bus_id.lower()}/vram"
    for line in capacity.split("\n"):
        name, _, text = line.partition(" ")
        number, size = name.removeprefix(start), decimal(text.strip())
        if name.startswith(start) and size is not None and (not number or decimal(number) is not None):
            found.setdefault(name, size)
    return tuple(found.items())


def region_limits(memory: int, regions: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """*memory* bytes as limits of *regions*, each in proportion to what it is of the whole: (name, bytes), whole pages."""
    whole = sum([size for _, size in regions])
    return tuple([(name, memory * size // whole & ~4095) for name, size in regions])
