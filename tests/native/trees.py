"""The runtime under the Python of another distribution: trees of Debian or the like, named by ``PYTHON_TREES``.

``PYTHON_TREES="/path /another"`` names directories with a whole system in each (mmdebstrap).  Nothing is written there: each
command of the runtime gets an overlay of the tree for its root, in a mount namespace of its own.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

TREES = [Path(tree) for tree in os.environ.get("PYTHON_TREES", "").split()]

#: What the wrapper does as root in a new mount namespace; the tree becomes its root.
_ENTER = """
set -e
mount -t tmpfs tmpfs {work}
mkdir {work}/upper {work}/work {work}/root
mount -t overlay overlay -o lowerdir={tree},upperdir={work}/upper,workdir={work}/work {work}/root
mkdir -p {work}/root{place} {work}/root/var/cache/gpurun {work}/root/usr/local/bin
: >{work}/root/usr/local/bin/gpurun
mount --bind {runtime} {work}/root/usr/local/bin/gpurun
mount --bind {cache} {work}/root/var/cache/gpurun
mount --bind {place} {work}/root{place}
mount --rbind /dev {work}/root/dev
mount --rbind /sys {work}/root/sys
mount -t proc proc {work}/root/proc
cd {work}/root
pivot_root . mnt
umount -l /mnt
cd /
exec /usr/local/bin/gpurun "$@"
"""


def why_not(tree: Path) -> str:
    """Why the Python of this tree cannot be used; empty when it can."""
    if os.geteuid() != 0:
        return "entering a tree needs root"
    return "" if (tree / "usr/bin/python3").exists() else f"there is no /usr/bin/python3 in {tree}"


def wrapper(tree: Path, runtime: str, place: Path) -> str:
    """An executable file that calls the *runtime* with *tree* for its root; *place* is the directory that both see."""
    directory = place / "trees" / tree.name
    for name in ("work", "cache"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    script = _ENTER.format(
        **{
            name: shlex.quote(str(path))
            for name, path in {
                "tree": tree, "runtime": runtime, "place": place, "work": directory / "work", "cache": directory / "cache"
            }.items()
        }
    )  # fmt: skip
    made = directory / "gpurun"
    made.write_text(f'#!/bin/sh\nexec unshare --mount --propagation private -- sh -c {shlex.quote(script)} sh "$@"\n')
    made.chmod(0o755)
    return str(made)
