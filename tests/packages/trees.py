"""Debian trees that packages are installed in, and what is run there.

A tree is made once by mmdebstrap and kept (GPURUN_TREES, else ~/.cache/gpurun-trees); each run sees it below an overlay
of its own (tests/beds/tree-run), so it stays as fresh as it was made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TREE_RUN = REPOSITORY / "tests/beds/tree-run"
HERE = Path("/")
_APT = ("Acquire::Check-Valid-Until false", "Acquire::Languages none", "APT::Install-Recommends false")


class TreeUnavailable(Exception):
    """This machine can make no such tree; the text says why."""


def debian(suite: str, *packages: str) -> Path:
    """The tree of a minimal Debian *suite* with *packages* in it; raises :class:`TreeUnavailable`."""
    kept = Path(os.environ.get("GPURUN_TREES") or Path.home() / ".cache/gpurun-trees")
    name = "-".join((suite, *packages))
    tree = kept / name
    if tree.exists():
        return tree
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        raise TreeUnavailable("Debian trees are made by root, with mmdebstrap")
    kept.mkdir(parents=True, exist_ok=True)
    made = kept / f".{name}.{os.getpid()}"
    options = [f"--aptopt={line}" for line in _APT]
    options += [f"--include={','.join(packages)}"] if packages else []
    # In a mount namespace of its own: what it mounts would come and go in the beds of other tests.
    apart = ["unshare", "-m", "--propagation", "private", "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase"]
    command = [*apart, "--format=directory", *options, suite, str(made)]
    done = subprocess.run([*command, f"deb {mirror()} {suite} main"], capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        shutil.rmtree(made, ignore_errors=True)
        raise TreeUnavailable(f"mmdebstrap: {done.stderr[-500:]}")
    made.rename(tree)
    return tree


def mirror() -> str:
    """The mirror of Debian that this machine's own apt uses; raises :class:`TreeUnavailable`."""
    found = debian_mirror()
    if not found:
        raise TreeUnavailable("no mirror of Debian in /etc/apt")
    return found


def debian_mirror() -> str:
    """The archive that this machine's own apt uses, "" when it names none of Debian's."""
    sources = Path("/etc/apt")
    files = [sources / "sources.list", *sources.glob("sources.list.d/*.list"), *sources.glob("sources.list.d/*.sources")]
    text = "\n".join([file.read_text() for file in files if file.exists()])
    for match in re.finditer(r"^(?:deb +(?:\[[^]]*\] +)?|URIs: *)(https?://[^ \n]+)", text, re.MULTILINE):
        if "security" not in match[1] and match[1].rstrip("/").endswith("debian"):
            return match[1]
    return ""


def run(tree: Path, script: str, *words: str | Path, show: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The shell *script* in *tree*, with *words* as its ``$1``, ``$2``; the files *show* of this machine are seen there."""
    command = [str(TREE_RUN), str(tree), "--", "sh", "-euc", script, "sh", *map(str, words)]
    environ = {**os.environ, "TREE_BIND": " ".join(map(str, show))}
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env=environ)
