"""The files by which bash, zsh and fish complete gpurun's command line: click's scripts, which ask gpurun for the words."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpurun.cli.human import completion_script

#: Shell → the name of the file as its directory of completions wants it.
FILES = {"bash": "gpurun", "zsh": "_gpurun", "fish": "gpurun.fish"}


def main() -> int:
    """Write the completion scripts; the exit code."""
    parser = argparse.ArgumentParser(prog="gpurun.builder.completions", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="write DIR/SHELL/FILE")
    output: Path = parser.parse_args().output
    for shell, name in FILES.items():
        (output / shell).mkdir(parents=True, exist_ok=True)
        (output / shell / name).write_text(completion_script(shell), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
