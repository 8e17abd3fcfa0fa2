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
from gpurun.launcher.fresh_interpreter import READINGS_ENTRY, SURVEY_ENTRY, Child, child_command

_SOURCE = Path(__file__).resolve().parents[2] / "src"
_CODE = """import sys
sys.path.insert(0, {!r})
from gpurun.gpu.host import fdinfo, reads
from gpurun.linux.files import read_file
reads.read_regular = read_file
if {!r}:
    import threading
    fdinfo.clients_of = lambda pid: threading.Event().wait()
from {} import main
main()
"""


def open_fifos(monkeypatch: pytest.MonkeyPatch, processes: bool = False) -> None:
    """From now on the helpers that look at GPUs wait at a FIFO as they would at a file whose driver hangs; with *processes*
    also at the fdinfo of any process."""

    def command(entry: str) -> Child:
        plain = child_command(entry)
        if entry not in (READINGS_ENTRY, SURVEY_ENTRY):
            return plain
        code = _CODE.format(str(_SOURCE), processes, entry.partition(":")[0])
        return Child((plain.executable, "-ISBc", code), sys.executable, None)

    monkeypatch.setattr(helper, "child_command", command)


def hang(path: Path) -> Path:
    """Put a FIFO in the place of the file *path*."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path
