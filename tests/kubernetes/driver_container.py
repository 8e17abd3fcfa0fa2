"""A driver that a container has brought: its libraries and programs are below /run/nvidia/driver, and nowhere else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

DRIVER_ROOT = "/run/nvidia/driver"
#: Stand-ins for NVIDIA's programs; each says how it was called, and with which root and which libraries.
_SMI = """#!{shell}
echo "smi $* from $(cat /of-the-driver || echo the node) $LD_LIBRARY_PATH" >>{said}
"""
_CONTROL = """#!{shell}
control=$CUDA_MPS_PIPE_DIRECTORY/control
if [ "$1" = -f ]; then
  echo "daemon from $(cat /of-the-driver || echo the node) $LD_LIBRARY_PATH" >>{said}
  touch /dev/shm/of-the-daemon
  # In place of one that a killed daemon has left, at once: a client that came between would make a file of that name.
  rm -f "$control.new"
  mkfifo "$control.new"
  exec 3<>"$control.new"
  mv -f "$control.new" "$control"
  while read -r line <&3; do
    echo "$line" >>{said}
    case $line in quit*) exit 0 ;; esac
  done
fi
[ -p "$control" ] || exit 1
read -r line
timeout 5 {shell} -c 'echo "$0" >"$1"' "$line" "$control"
"""


def moved(host: Path, whole: bool) -> Path:
    """Move the driver of the tree *host* to its container's root; the file in which its programs say what they were told.

    *whole*: that root has a shell of its own, as a container has; else it has the driver's files alone.
    """
    root = host / DRIVER_ROOT.strip("/")
    root.mkdir(parents=True)
    for name in ("usr", "etc"):
        (host / name).rename(root / name)
    return programs(root, whole, host)


def programs(root: Path, whole: bool, host: Path) -> Path:
    """Make the programs in the driver's root; the file in which they say what they were told."""
    said = root / "said" if whole else host / "said"
    said.touch()
    if whole:
        (root / "of-the-driver").write_text("the driver's root\n")
        for name in ("dev/shm", "mnt", "bin"):
            (root / name).mkdir(parents=True, exist_ok=True)
        busybox = shutil.which("busybox") or "busybox"
        shutil.copy(busybox, root / "bin/busybox")
        for name in ("sh", "cat", "touch", "rm", "mkfifo", "mv", "timeout"):
            os.symlink("busybox", root / f"bin/{name}")
    shell = "/bin/sh" if whole else "/bin/bash"
    for name, text in (("nvidia-smi", _SMI), ("nvidia-cuda-mps-control", _CONTROL)):
        program = root / f"usr/bin/{name}"
        program.unlink(missing_ok=True)
        program.write_text(text.format(shell=shell, said="/said" if whole else said))
        program.chmod(0o755)
    return said
