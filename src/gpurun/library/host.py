"""What this host has for containers."""

from __future__ import annotations

from gpurun.gpu.nvidia.host.gpus import Gpu, read_gpus
from gpurun.gpu.nvidia.request.settings import roots_of, site_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def gpus(environ: Mapping[str, str] | None = None) -> tuple[Gpu, ...]:
    """The GPUs of this host in the order in which NVML counts them; none where no driver is loaded.

    *environ* may have gpurun's own settings (``GPURUN_SYSROOT`` for a simulated host); by default there are none.  Raises
    :class:`gpurun.GpurunError` when the site's config.toml cannot be used.

    >>> all(gpu.uuid.startswith("GPU-") for gpu in gpus())
    True
    """
    own = dict(environ or {})
    return read_gpus(roots_of(own, site_settings(own)))
