"""Writing a command's result to stdout without ``io``: all of it, or an error that says so."""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError, strerror_lower


def write_stdout(text: str) -> None:
    """Write *text* to fd 1; raises :class:`GpurunError` when the reader is gone or the disk is full."""
    data = text.encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[posix.write(1, data) :]
    except OSError as e:
        raise GpurunError(f"cannot write to stdout: {strerror_lower(e.errno or 0)}") from None
