"""bundle: make a bundle of an image."""

from __future__ import annotations

import os
import signal

from gpurun import log
from gpurun.errors import GpurunError, UsageError
from gpurun.images.bundle import BundleRequest, make_bundle, site_labels
from gpurun.images.unpack import Limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.invocation import Invocation


def bundle(invocation: Invocation) -> int:
    """``bundle SOURCE -o DIR [COMMAND...]``: all of DIR is made, or nothing is left of it.

    Raises :class:`UsageError` without ``--output``.
    """
    source, *command = invocation.args
    output = invocation.option("output")
    if not output:
        raise UsageError("bundle: the output directory is missing: bundle SOURCE --output DIR")
    size = invocation.option("max-size")
    asked = BundleRequest(
        source, output, tuple(command), invocation.option("tag"), invocation.option("architecture"),
        Limits(_bytes(size)) if size else Limits(), site_labels(os.environ),
    )  # fmt: skip
    signal.signal(signal.SIGTERM, _exit_on_signal)
    log.warnings(make_bundle(asked, os.environ))
    return 0


def _exit_on_signal(number: int, _: object) -> None:
    """What was made is taken back, and the program that made it is ended."""
    raise SystemExit(128 + number)


def _bytes(text: str) -> int:
    from gpurun.engine.caller.update import parse_bytes

    size = parse_bytes(text, "max-size")
    if size <= 0:
        raise GpurunError(f"--max-size: {text} is not a size")
    return size
