"""What the machine path may import beside gpurun: the one list, for the build, the tests and ARCHITECTURE.md.

All of them are built into the interpreter or are C modules; the standard library's Python (``os``, ``json``, ``re``,
``enum`` ...) costs more to import than a command may take.
"""

from __future__ import annotations

#: Modules of the standard library.  Where one is a file, the build remembers which, because the launcher runs without a
#: path.
ALLOWED = (
    "posix", "sys", "time", "errno", "marshal", "fcntl", "select", "gc", "_socket", "_signal", "_stat", "_json", "_ctypes",
    "_struct", "_posixsubprocess", "_blake2",
)  # fmt: skip
