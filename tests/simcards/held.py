"""A driver that hangs: files of a simulated host whose reading never ends.

gpurun opens no FIFO where it expects a file (read_regular), and no file of sysfs can be made to block here.  So the helper
process is started with a reader that does open FIFOs; everything else is the product's own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gpurun.gpu.host import helper
from gpurun.launcher.fresh_interpreter import READINGS_ENTRY, Child, child_command

_SOURCE = Path(__file__).resolve().parents[2] / "src"
_CODE = f"""import sys
sys.path.insert(0, {str(_SOURCE)!r})
from gpurun.gpu.host import reads
from gpurun.linux.files import read_file
reads.read_regular = read_file
from gpurun.gpu.readings_process import main
main()
"""


def open_fifos(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the helper that reads what GPUs do waits at a FIFO as it would at a file whose driver hangs."""

    def command(entry: str) -> Child:
        plain = child_command(entry)
        return plain if entry != READINGS_ENTRY else Child((plain.executable, "-ISBc", _CODE), sys.executable, None)

    monkeypatch.setattr(helper, "child_command", command)


def hang(path: Path) -> Path:
    """Put a FIFO in the place of the file *path*."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path
