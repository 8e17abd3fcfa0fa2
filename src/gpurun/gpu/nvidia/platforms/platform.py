"""Hosts whose GPU is not a PCI card under NVIDIA's driver for Linux: Windows (WSL 2), and Tegra systems.

Imported only where /proc/driver/nvidia has no GPU, or the site's configuration says ``mode = "csv"``.
"""

from __future__ import annotations

import posix

from gpurun.cdi.edits import ContainerEdits, DeviceNode, conf_files
from gpurun.errors import GpuError, clean
from gpurun.gpu.host.reads import exists, read_text
from gpurun.gpu.nvidia.host.libraries import DriverRoot, open_driver_root
from gpurun.gpu.nvidia.host.roots import Roots, driver_root_path
from gpurun.gpu.nvidia.request.require import check, properties
from gpurun.gpu.vendors import place
from gpurun.linux.files import Fd
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.cdi.edits import CacheEntry, EditMount, ForwardCompat, Link, ProcTree
    from gpurun.gpu.host.reads import HostNode
    from gpurun.gpu.nvidia.host.gpus import Gpu
    from gpurun.gpu.nvidia.request.records import GpuRequest
    from gpurun.gpu.nvidia.request.settings import Settings

WSL, TEGRA = "wsl", "tegra"


def detect(roots: Roots) -> str:
    """``wsl``, ``tegra``, or empty for everything else."""
    if exists(f"{roots.sysroot}/dev/dxg"):
        return WSL
    family = read_text(f"{roots.sysroot}/sys/devices/soc0/family").strip().lower()
    if family == "tegra" or exists(f"{roots.sysroot}/etc/nv_tegra_release"):
        return TEGRA
    return ""


class TegraLists(Record):
    """What a site or ``cdi generate`` says of a Tegra: *files* are the lists (all of *directory* where none is named),
    *ignored* patterns of links in them; *compat_root* is where an Orin's images have newer CUDA libraries (empty: the usual
    place), *one_device* whether a graphics card beside the board's own GPU is no device of its own.
    """

    directory: str
    files: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    compat_root: str = ""
    one_device: bool = False


def site_lists(settings: Settings) -> TegraLists:
    """What the site's config.toml says of a Tegra."""
    from gpurun.gpu.nvidia.edits.features import ONE_DEVICE

    one_device = ONE_DEVICE in settings.jit_feature_flags
    return TegraLists(settings.csv_dir, compat_root=settings.csv_compat_root, one_device=one_device)


def platform_edits(request: GpuRequest, roots: Roots, mode: str, lists: TegraLists) -> ContainerEdits | None:
    """The edits for *request* on such a host; ``None`` on every other.

    *mode* is that of the site's configuration (``csv`` makes it a Tegra).
    Raises :class:`GpuError` for a device or a file that is not there, :class:`ConfigError` for a requirement not met.
    """
    platform = TEGRA if mode == "csv" else detect(roots)
    if not platform:
        return None
    check(request.requirements, (properties(""),))  # versions are not known here, brands neither
    root = open_driver_root(driver_root_path(roots), posix.uname().machine)
    with Fd(root.fd):
        return _wsl(request, roots, root) if platform == WSL else _tegra(request, roots, root, lists)


def tegra_gpus(roots: Roots, lists: TegraLists) -> tuple[Gpu, ...]:
    """The GPUs of a Tegra that are devices of their own, by index; none where the whole board is one device."""
    from gpurun.gpu.nvidia.host.gpus import read_gpus
    from gpurun.gpu.nvidia.platforms.tegra import cards

    return cards(read_gpus(roots), lists.one_device)


def _wsl(request: GpuRequest, roots: Roots, root: DriverRoot) -> ContainerEdits:
    from gpurun.gpu.nvidia.platforms.wsl import find_files

    _only(request, "WSL", lambda device: device == "all" or device.isdigit() or device[:4].upper() == "GPU-")
    found = find_files(roots, root, request.capabilities)
    warnings = []
    if request.devices not in ((), ("all",)):
        asked = clean(",".join(request.devices))
        warnings.append(f"{place(request.source)}: '{asked}': under WSL all GPUs are one device: the container sees all")
    return _edits(request, found.nodes if request.devices else (), found.mounts, found.links, found.cache, warnings)


def _tegra(request: GpuRequest, roots: Roots, root: DriverRoot, lists: TegraLists) -> ContainerEdits:
    from gpurun.gpu.nvidia.platforms.tegra import device_nodes, find_files, forward_compat, lists_in

    gpus = tegra_gpus(roots, lists)
    _only(request, "this Tegra", lambda device: bool(gpus) or device in ("all", "0"))
    found = find_files(roots, root, lists.files or lists_in(roots, lists.directory, request.all_csv), lists.ignored)
    nodes = found.nodes if request.devices else ()
    if gpus:
        nodes = device_nodes(request, roots, found.nodes, gpus)
    compat, warnings = None, []
    if request.forward_compat:
        try:
            compat = forward_compat(root, found, lists.compat_root)
        except GpuError as e:
            warnings.append(f"newer CUDA libraries of the image are not used: {e}")
    return _edits(request, nodes, found.mounts, found.links, found.cache, warnings, compat, _proc_trees(roots, nodes))


def _proc_trees(roots: Roots, nodes: tuple[HostNode, ...]) -> tuple[ProcTree, ...]:
    """/proc/driver/nvidia with only the GPUs among *nodes*; none on a board whose GPU is not there (an Orin)."""
    from gpurun.gpu.nvidia.edits.proc_files import proc_tree
    from gpurun.gpu.nvidia.host.driver import proc_files
    from gpurun.gpu.nvidia.host.gpus import read_gpus
    from gpurun.gpu.nvidia.request.selection import Selected

    files = proc_files(roots)
    paths = {node.path for node in nodes}
    selected = tuple([Selected(gpu) for gpu in read_gpus(roots) if gpu.node.path in paths])
    return (proc_tree(files, f"{roots.sysroot}/proc/driver/nvidia", selected),) if files else ()


def _only(request: GpuRequest, platform: str, known: Callable[[str], bool]) -> None:
    for device in request.devices:
        if not known(device):
            raise GpuError(
                f"{clean(device)}: unknown device ({place(request.source)}): the GPU of {platform} is 0 or all, without MIG"
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
    compat: ForwardCompat | None = None,
    trees: tuple[ProcTree, ...] = (),
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
        forward_compat=compat,
        proc_trees=trees,
        additional_gids=tuple(sorted({n.gid for n in nodes if n.gid and n.mode & 0o006 != 0o006})),
        warnings=request.warnings + tuple(warnings),
    )
