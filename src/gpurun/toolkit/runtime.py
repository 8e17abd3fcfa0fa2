"""``nvidia-container-runtime``: gpurun, with the log file and the mode that NVIDIA's runtime has of its own."""

from __future__ import annotations

import posix

from gpurun import log
from gpurun.document_cache import keep_documents
from gpurun.errors import GpurunError
from gpurun.gpu.nvidia.request.settings import read_settings, settings_path
from gpurun.oci import SPEC_VERSION


def first_lines() -> str:
    """What NVIDIA's runtime says of itself before the version of the runtime that does the work."""
    from gpurun.gpu.nvidia.cdi.known_hooks import INTERFACE_VERSION

    return f"NVIDIA Container Runtime version {INTERFACE_VERSION}\nspec: {SPEC_VERSION}\n\n"


def enter(mode: str, root: str = "") -> None:
    """Take up the site's settings for the runtime; *mode* is the one that the name forces (``cdi``, ``legacy``), or empty.

    The file is parsed once for the state root *root*: engines call for each container five times.

    A file that cannot be read is reported by the command that needs more of it: containers without GPUs can be deleted.
    """
    if mode:
        posix.environ[b"GPURUN_MODE"] = mode.encode()
    keep_documents(root)
    env = {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape") for k, v in posix.environ.items()}
    try:
        settings = read_settings(settings_path(env))
    except GpurunError:
        return
    if settings.log_file:
        log.copy_to(settings.log_file, settings.log_level in ("debug", "trace"))
