"""Hosts whose GPU is not a PCI card under NVIDIA's driver for Linux: Windows (WSL 2), and Tegra systems.

Imported only where /proc/driver/nvidia has no GPU, or the site's configuration says ``mode = "csv"``.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpuError
from gpurun.hook.edits import ContainerEdits, DeviceNode
from gpurun.hook.host import Roots, driver_root_path, exists, read_text
from gpurun.hook.ldconf import conf_files
from gpurun.hook.libraries import DriverRoot, open_driver_root
from gpurun.hook.request import place, shown
from gpurun.hook.require import check, properties

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.hook.edits import CacheEntry, EditMount, Link
    from gpurun.hook.host import HostNode
    from gpurun.hook.request import GpuRequest

WSL, TEGRA = "wsl", "tegra"


def detect(roots: Roots) -> str:
    """``wsl``, ``tegra``, or empty for everything else."""
    if exists(f"{roots.sysroot}/dev/dxg"):
        return WSL
    family = read_text(f"{roots.sysroot}/sys/devices/soc0/family").strip().lower()
    if family == "tegra" or exists(f"{roots.sysroot}/etc/nv_tegra_release"):
        return TEGRA
    return ""


def platform_edits(
    request: GpuRequest, roots: Roots, mode: str, csv_dir: str, lists: tuple[str, ...] = (), ignored: tuple[str, ...] = ()
) -> ContainerEdits | None:
    """The edits for *request* on such a host; ``None`` on every other.

    *mode* is that of the site's configuration (``csv`` makes it a Tegra), *csv_dir* has a Tegra's lists of files, unless
    *lists* names them; paths that one of the patterns *ignored* fits are left out of them.
    Raises :class:`GpuError` for a device or a file that is not there, :class:`ConfigError` for a requirement not met.
    """
    platform = TEGRA if mode == "csv" else detect(roots)
    if not platform:
        return None
    check(request.requirements, (properties(""),))  # versions are not known here, brands neither
    root = open_driver_root(driver_root_path(roots), posix.uname().machine)
    try:
        made = _wsl(request, roots, root) if platform == WSL else _tegra(request, roots, root, csv_dir, lists, ignored)
    finally:
        posix.close(root.fd)
    return made


def _wsl(request: GpuRequest, roots: Roots, root: DriverRoot) -> ContainerEdits:
    from gpurun.hook.wsl import find_files

    _only(request, "WSL", lambda device: device == "all" or device.isdigit() or device[:4].upper() == "GPU-")
    found = find_files(roots, root, request.capabilities)
    warnings = []
    if request.devices not in ((), ("all",)):
        asked = shown(",".join(request.devices))
        warnings.append(f"{place(request.source)}: '{asked}': under WSL all GPUs are one device: the container sees all")
    return _edits(request, found.nodes if request.devices else (), found.mounts, found.links, found.cache, warnings)


def _tegra(
    request: GpuRequest, roots: Roots, root: DriverRoot, csv_dir: str, lists: tuple[str, ...], ignored: tuple[str, ...]
) -> ContainerEdits:
    from gpurun.hook.tegra import find_files, lists_in

    _only(request, "this Tegra", lambda device: device in ("all", "0"))
    found = find_files(roots, root, lists or lists_in(roots, csv_dir, request.all_csv), ignored)
    return _edits(request, found.nodes if request.devices else (), found.mounts, found.links, found.cache, [])


def _only(request: GpuRequest, platform: str, known: Callable[[str], bool]) -> None:
    for device in request.devices:
        if not known(device):
            raise GpuError(
                f"{shown(device)}: unknown device ({place(request.source)}): the GPU of {platform} is 0 or all, without MIG"
            )
    if request.imex_channels:
        raise GpuError(f"IMEX channel {request.imex_channels[0]}: {platform} has no IMEX channels")
    admin = [extra for extra in request.extras if extra.startswith("mig-")]
    if admin:
        raise GpuError(f"{admin[0]}: {platform} has no MIG")


def _edits(
    request: GpuRequest,
    nodes: tuple[HostNode, ...],
    mounts: tuple[EditMount, ...],
    links: tuple[Link, ...],
    cache: tuple[CacheEntry, ...],
    warnings: list[str],
) -> ContainerEdits:
    reason = f"the platform's GPU ({request.source})"
    warnings += [f"{extra}: this platform has no such devices: nothing is added" for extra in request.extras]
    return ContainerEdits(
        device_nodes=tuple(
            [DeviceNode(n.path, n.host_path, "c", n.major, n.minor, n.mode, 0, n.gid, "rw", reason) for n in nodes]
        ),
        mounts=mounts,
        links=tuple({link.path: link for link in links}.values()),
        ldcache=cache,
        image_files=conf_files(cache),
        additional_gids=tuple(sorted({n.gid for n in nodes if n.gid and n.mode & 0o006 != 0o006})),
        warnings=request.warnings + tuple(warnings),
    )
