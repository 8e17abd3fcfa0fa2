"""A program that does not end when it is killed, as one that the kernel holds in a driver.

It has a tracer that lets nothing that is killed go on to its end (PTRACE_O_TRACEEXIT), until the tracer itself is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TEXT = """#!{}
import ctypes, os, signal
libc, traced, pid = ctypes.CDLL(None), os.pipe(), os.getpid()
if os.fork() == 0:
    os.setsid()
    if libc.ptrace(0x4206, pid, None, ctypes.c_void_p(0x40)):  # PTRACE_SEIZE
        os._exit(1)
    with open({!r}, "w") as file:
        file.write(f"{{pid}} {{os.getpid()}}")
    os.closerange(0, 1024)
    signal.pause()
os.close(traced[1])
os.read(traced[0], 1)
signal.pause()
"""


@contextmanager
def held_program(path: Path) -> Iterator[Path]:
    """A program at *path*; it goes on to its end behind the block.  Yields the file with its pid, when it is held."""
    pids = path.with_name(f"{path.name}.pids")
    path.write_text(_TEXT.format(sys.executable, str(pids)))
    path.chmod(0o755)
    try:
        yield pids
    finally:
        if pids.exists():
            os.kill(int(pids.read_text().split()[1]), signal.SIGKILL)
