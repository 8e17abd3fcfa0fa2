"""What the doctor says of a host whose GPU is no PCI card under NVIDIA's driver for Linux: WSL 2, and a Tegra."""

from __future__ import annotations

from gpurun.errors import GpurunError
from gpurun.gpu.host.finding import Finding
from gpurun.gpu.nvidia.host.gpus import has_cards_alone
from gpurun.gpu.nvidia.platforms.platform import WSL, detect, platform_edits, site_lists
from gpurun.gpu.nvidia.request.records import GpuRequest
from gpurun.gpu.nvidia.request.settings import Settings, read_settings, settings_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurun.gpu.nvidia.host.roots import Roots


def platform(roots: Roots, env: Mapping[str, str]) -> list[Finding]:
    """What containers get of the platform's GPU, or what keeps them from it; nothing on a host that has only cards."""
    try:
        settings = read_settings(settings_path(env), [])
    except GpurunError:  # reported already
        settings = Settings()
    if settings.mode != "csv" and (has_cards_alone(roots) or not detect(roots)):
        return []
    title = "WSL 2" if settings.mode != "csv" and detect(roots) == WSL else "Tegra"
    try:
        made = platform_edits(GpuRequest(("all",)), roots, settings.mode, site_lists(settings))
    except GpurunError as e:
        return [Finding(title, "fail", str(e))]
    if made is None or not made.device_nodes:
        return [Finding(title, "fail", "the driver's files are there, and no device node of a GPU")]
    nodes = [node.path for node in made.device_nodes]
    shown = ", ".join(nodes[:8]) + (", …" if len(nodes) > 8 else "")
    found = [Finding(title, "ok", f"containers get {shown} and {len(made.mounts)} files of the driver")]
    return found + [Finding(title, "note", warning) for warning in made.warnings]
