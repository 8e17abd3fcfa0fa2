"""The version that a package gets: the tag's, and between two tags the last one with what has come since.

``gpurun.__version__`` is what the program says of itself; ``tools/release`` changes it and makes the tag in one go.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from gpurun import __version__

ROOT = Path(__file__).resolve().parents[3]
_DESCRIBED = re.compile(r"v(?P<tag>[^-]+)-(?P<commits>\d+)-g(?P<commit>[0-9a-f]+)(?P<dirty>-dirty)?")


def version(root: Path = ROOT) -> str:
    """The version of the tree *root*, for PEP 440 and for Debian alike: ``0.1.0`` at the tag ``v0.1.0``, later
    ``0.1.0+12.g3f0c2a1``.

    Without git it is what the source archive was made as, else ``gpurun.__version__``.  Raises ValueError where the tag of
    this very commit says another version than the program would.
    """
    if not (root / ".git").exists():
        return _of_archive(root / "PKG-INFO") or __version__
    return of_description(_describe(root), __version__)


def of_description(described: str, programs: str) -> str:
    """The version for what ``git describe --long`` says (empty: there is no tag); *programs* is that of the program.

    Raises ValueError when the tag and the program differ.
    """
    found = _DESCRIBED.fullmatch(described)
    if found is None:
        return programs
    if found["commits"] == "0" and not found["dirty"]:
        if found["tag"] != programs:
            raise ValueError(f"the tag is v{found['tag']}, but gpurun.__version__ is {programs}: tools/release makes both")
        return programs
    return f"{programs}+{found['commits']}.g{found['commit']}{'.dirty' if found['dirty'] else ''}"


def _describe(root: Path) -> str:
    command = ["git", "-C", str(root), "describe", "--tags", "--long", "--dirty", "--match=v[0-9]*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no tag yet
        return ""


def _of_archive(path: Path) -> str:
    """The version in the PKG-INFO of a source archive; empty where there is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(": ")[2] for line in lines if line.startswith("Version: ")), "")


if __name__ == "__main__":
    print(version())
