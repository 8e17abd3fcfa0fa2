"""The files by which bash, zsh and fish complete gpurun's command line: click's scripts, which ask gpurun for the words."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from click.shell_completion import get_completion_class

from gpurun.cli.human import build

#: Shell → the name of the file as its directory of completions wants it.
FILES = {"bash": "gpurun", "zsh": "_gpurun", "fish": "gpurun.fish"}


def script(shell: str) -> str:
    """The completion script of *shell*, one of :data:`FILES`."""
    found = get_completion_class(shell)
    if found is None:
        raise ValueError(f"click has no completion for {shell}")
    source: str = found(build(), {}, "gpurun", "_GPURUN_COMPLETE").source()
    return source.strip("\n") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpurun.builder.completions", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="write DIR/SHELL/FILE")
    output: Path = parser.parse_args().output
    for shell, name in FILES.items():
        (output / shell).mkdir(parents=True, exist_ok=True)
        (output / shell / name).write_text(script(shell), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
