"""What the kernel has logged since a moment.  Its buffer is a ring: a line's number means another line when it is full."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path


def mark_kernel_log() -> str:
    """Write a line into the kernel's log, which :func:`kernel_log` finds again; its text."""
    mark = f"gpurun-test {secrets.token_hex(8)}"
    Path("/dev/kmsg").write_text(f"{mark}\n")
    return mark


def kernel_log(mark: str) -> list[str]:
    """The lines after *mark*; fails when the log has no room for all of them."""
    lines = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout.splitlines()
    at = [number for number, line in enumerate(lines) if line.endswith(mark)]
    assert at, "more has been logged than the kernel's log can hold"
    return lines[at[0] + 1 :]
