"""A kernel with the dmem controller, simulated: none of those that tests run on counts the memory of a GPU.

The runtime is that of the source tree, told that the controller is there.  What it writes to ``dmem.max`` of a cgroup is a
line of a file that the test reads; everything else is the product's own, and the kernel's.
"""

from __future__ import annotations

import os
from pathlib import Path

_SOURCE = Path(__file__).resolve().parents[2] / "src"
#: Compiled once for all tests: the source tree's own interpreters write no bytecode.
_BYTECODE = _SOURCE.parent / "build/pycache"
_CODE = """#!/usr/bin/python3 -IS
import errno, posix, sys
sys.pycache_prefix = {bytecode!r}
sys.path.insert(0, {source!r})
from gpurun.launcher import fresh_interpreter
begin = "import sys;sys.pycache_prefix={{!r}};sys.dont_write_bytecode=False;".format({bytecode!r})
fresh_interpreter._SOURCE_CODE = fresh_interpreter._SOURCE_CODE.replace("import sys;", begin)
from gpurun.cgroup import tree
from gpurun.record import replace
whole = tree.find_tree
def find_tree():
    found = whole()
    return replace(found, controllers=(*found.controllers, "dmem"))
tree.find_tree = find_tree
from gpurun.cgroup import manager
write = manager._write
def simulated(fd, name, value):
    if name != "dmem.max":
        return write(fd, name, value)
    if posix.access({place!r} + "/gone", posix.F_OK):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")
    if posix.access({place!r} + "/unknown", posix.F_OK):
        raise OSError(errno.EINVAL, "Invalid argument")
    name = posix.readlink("/proc/self/fd/%d" % fd).rpartition("/")[2]
    with open({place!r} + "/" + name, "a") as file:
        file.write(value + "\\n")
    if posix.access({place!r} + "/hold", posix.F_OK):
        posix.open({place!r} + "/hold", posix.O_RDONLY)  # a FIFO that nobody writes to
manager._write = simulated
from gpurun.__main__ import main
sys.exit(main())
"""


class Dmem:
    """The controller; *program* is the runtime on such a kernel, and the files are below *place*."""

    def __init__(self, place: Path) -> None:
        self.place = place / "dmem"
        self.place.mkdir(mode=0o755)
        self.program = self.place / "gpurun"
        self.program.write_text(_CODE.format(source=str(_SOURCE), bytecode=str(_BYTECODE), place=str(self.place)))
        self.program.chmod(0o755)

    def limits(self, cgroup: str) -> list[str]:
        """What was written for the cgroup with this name, a line each."""
        file = self.place / cgroup
        return file.read_text().splitlines() if file.exists() else []

    def goes(self) -> None:
        """From now on there is no such file in any cgroup."""
        (self.place / "gone").touch()

    def knows_no_region(self) -> None:
        """From now on the kernel refuses what is written: the driver was unloaded."""
        (self.place / "unknown").touch()

    def hold(self) -> None:
        """From now on whoever has written a limit waits for good."""
        os.mkfifo(self.place / "hold")
