"""CDI specifications of hosts whose GPU is not a PCI card under NVIDIA's driver for Linux: WSL 2, and Tegra systems.

There is one device, because these platforms cannot keep GPUs apart: ``all`` under WSL, ``0`` and ``all`` on a Tegra.  Only a
Tegra with graphics cards has one for each of its GPUs.
"""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.gpu.nvidia.cdi.generate import assemble, check_options, device_names, unused_options
from gpurun.gpu.nvidia.cdi.generated import Generated, GenerateOptions
from gpurun.gpu.nvidia.edits.features import ONE_DEVICE
from gpurun.gpu.nvidia.host.file_names import CAPABILITIES
from gpurun.gpu.nvidia.platforms.platform import TEGRA, WSL, TegraLists, detect, platform_edits, tegra_gpus
from gpurun.gpu.nvidia.request.records import GpuRequest
from gpurun.gpu.nvidia.request.selection import find_gpu
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.cdi.edits import ContainerEdits
    from gpurun.gpu.nvidia.host.gpus import Gpu
    from gpurun.gpu.nvidia.host.roots import Roots

#: Modes of ``cdi generate`` → platform.
PLATFORMS = {"wsl": WSL, "csv": TEGRA}
#: Hooks about /proc/driver/nvidia and its nodes: there is nothing of it, but on a Thor, whose driver needs none of them.
_NOT_THERE = ("disable-device-node-modification", "update-application-profile")


def generate_platform(platform: str, roots: Roots, options: GenerateOptions, own_env: Mapping[str, str]) -> Generated:
    """The specification of this host, which has to be the *platform*.

    Raises :class:`UsageError` for bad options and :class:`GpuError` where it is another, or lacks what is needed.
    """
    check_options(options)
    if platform == WSL and detect(roots) != WSL:
        raise GpuError("--mode wsl: this host is not WSL: there is no /dev/dxg")
    mode = "csv" if platform == TEGRA else "auto"
    lists = TegraLists(
        options.csv_dir, options.csv_files, options.csv_ignored, options.csv_compat_root, ONE_DEVICE in options.features
    )

    def made(*devices: str, compat: bool = False) -> ContainerEdits:
        edits = platform_edits(GpuRequest(devices, CAPABILITIES, forward_compat=compat), roots, mode, lists)
        if edits is None:
            raise GpuError("no GPU on this host: a CDI specification needs at least one device")
        return edits

    none = made(compat=True)
    devices = []
    for names, device in _devices(platform, tegra_gpus(roots, lists) if platform == TEGRA else (), options):
        edits = made(device)
        if not edits.device_nodes:
            raise GpuError("this host has none of the device nodes that its lists name: a CDI device needs at least one")
        devices.append((names, replace(edits, forward_compat=none.forward_compat)))
    hooks = replace(
        options,
        disabled_hooks=(*options.disabled_hooks, *_NOT_THERE),
        enabled_hooks=tuple([hook for hook in options.enabled_hooks if hook not in _NOT_THERE]),
    )
    return Generated(assemble(none, tuple(devices), hooks, own_env), (*unused_options(options), *none.warnings))


def _devices(platform: str, gpus: tuple[Gpu, ...], options: GenerateOptions) -> list[tuple[tuple[str, ...], str]]:
    """(names, what is asked for) of each device to be described."""
    if gpus:
        chosen = dict.fromkeys([gpu if d == "all" else find_gpu(d, gpus) for d in options.devices for gpu in gpus])
        named = [(device_names(gpu, None, options.strategies), str(gpu.index)) for gpu in chosen]
        return [(names, device) for names, device in named if names]
    only = "all" if platform == WSL else "0"
    if options.devices not in (("all",), (only,)):
        raise GpuError(f"{options.devices[0]}: unknown device: the only device of this platform is {only}")
    return [((only,), "all")]
