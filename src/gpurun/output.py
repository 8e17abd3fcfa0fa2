"""The way out for all that a command prints on stdout: all of it, or an error that says so, and without ``io``."""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError, strerror_lower


def write_stdout(text: str) -> None:
    """Write *text* to fd 1; raises :class:`GpurunError` when the reader is gone or the disk is full."""
    _write(text.encode("utf-8", "surrogateescape"))


def _write(data: bytes) -> None:
    try:
        while data:
            data = data[posix.write(1, data) :]
    except OSError as e:
        raise GpurunError(f"cannot write to stdout: {strerror_lower(e.errno or 0)}") from None


class _Binary:
    """What is below a text stream."""

    def write(self, data: bytes) -> int:
        _write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing waits."""


class Stdout:
    """In the place of ``sys.stdout``, for the libraries that print by themselves (click, argparse)."""

    encoding, errors = "utf-8", "surrogateescape"
    buffer = _Binary()

    def write(self, text: str) -> int:
        write_stdout(text)
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        return posix.isatty(1)

    def fileno(self) -> int:
        return 1
