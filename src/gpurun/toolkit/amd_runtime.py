"""``amd-container-runtime``: gpurun, which passes over ids that name no AMD GPU, as AMD's runtime does."""

from __future__ import annotations

import posix

from gpurun.gpu.vendors import AMD_UNKNOWN, IGNORE_UNKNOWN


def first_lines() -> str:
    """Nothing: AMD's runtime leaves its version to the runtime that does the work."""
    return ""


def enter(mode: str, root: str = "") -> None:
    """Take up AMD's way with ids that this host does not have, unless gpurun's environment names another.

    *mode* and *root* are what other makers' runtimes are entered with; nothing depends on them here.
    """
    posix.environ.setdefault(AMD_UNKNOWN.encode(), IGNORE_UNKNOWN.encode())
