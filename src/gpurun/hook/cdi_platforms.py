"""CDI specifications of hosts whose GPU is not a PCI card under NVIDIA's driver for Linux: WSL 2, and Tegra systems.

There is one device, because these platforms cannot keep GPUs apart: ``all`` under WSL, ``0`` and ``all`` on a Tegra.
"""

from __future__ import annotations

from gpurun.errors import GpuError
from gpurun.hook.cdi_generate import Generated, GenerateOptions, assemble, check_options, unused_features
from gpurun.hook.platforms import TEGRA, WSL, detect, platform_edits
from gpurun.hook.request import CAPABILITIES, GpuRequest
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.hook.host import Roots

#: Modes of ``cdi generate`` → platform.
PLATFORMS = {"wsl": WSL, "csv": TEGRA}
#: Hooks about /proc/driver/nvidia, its nodes and CUDA libraries of images for its versions: there is nothing of it.
_NOT_THERE = ("disable-device-node-modification", "update-application-profile", "enable-cuda-compat")


def generate_platform(platform: str, roots: Roots, options: GenerateOptions, own_env: Mapping[str, str]) -> Generated:
    """The specification of this host, which has to be the *platform*.

    Raises :class:`UsageError` for bad options and :class:`GpuError` where it is another, or lacks what is needed.
    """
    check_options(options)
    if platform == WSL and detect(roots) != WSL:
        raise GpuError("--mode wsl: this is no WSL: there is no /dev/dxg")
    mode = "csv" if platform == TEGRA else "auto"
    found = []
    for devices in ((), ("all",)):
        request = GpuRequest(devices, CAPABILITIES)
        made = platform_edits(request, roots, mode, options.csv_dir, options.csv_files, options.csv_ignored)
        if made is None:
            raise GpuError("no GPU on this host: a CDI specification needs at least one device")
        found.append(made)
    if not found[1].device_nodes:
        raise GpuError("this host has none of the device nodes that its lists name: a CDI device needs at least one")
    wanted = ("all",) if platform == WSL else ("0",)
    if options.devices not in (("all",), wanted):
        raise GpuError(f"{options.devices[0]}: unknown device: the only device of this platform is {wanted[0]}")
    hooks = replace(
        options,
        disabled_hooks=(*options.disabled_hooks, *_NOT_THERE),
        enabled_hooks=tuple([hook for hook in options.enabled_hooks if hook not in _NOT_THERE]),
    )
    spec = assemble(found[0], ((wanted, found[1]),), "", hooks, own_env)
    return Generated(spec, unused_features(options))
