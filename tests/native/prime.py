"""Having the compiled front do an exec itself: it goes by the plan that an earlier one like it has left (front_exec.c).

With ``PRIMED=1`` each exec of a test is preceded by one like it that does nothing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpurun.cli.parse import parse
from gpurun.engine.caller.kept_plan import around_args
from gpurun.errors import GpurunError

#: The options of an exec that the front may do.
PLAIN = frozenset(("detach", "pid-file", "process"))
NOTHING = ("/bin/busybox", "true")


def likewise(argv: Sequence[str], directory: Path) -> list[str] | None:
    """The exec like that of *argv* (from ``--root`` on) that does nothing; None where the front would do none of it."""
    try:
        invocation = parse(argv)
        if invocation.command != "exec" or not PLAIN.issuperset(invocation.options):
            return None
        words = [f"--root={invocation.globals.root}", "exec"]
        if not invocation.option("process"):
            return [*words, invocation.args[0], *NOTHING]
        around = around_args(Path(invocation.option("process")).read_bytes())
        if around is None:
            return None
    except (GpurunError, OSError, ValueError):
        return None  # it is to fail, and for another reason
    process = directory / "primed.json"
    process.write_bytes(around[0] + b'["/bin/busybox", "true"]' + around[1])
    return [*words, "--process", str(process), invocation.args[0]]


def prime(
    program: str, argv: Sequence[str], directory: Path, enter: Callable[[Sequence[str]], tuple[list[str], Any]]
) -> None:
    """Run it, where there is one; *enter* is that of the bed.  That it fails is for the exec itself to show."""
    words = likewise(argv, directory)
    if words is not None:
        command, before_exec = enter([program, *words])
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            preexec_fn=before_exec,
        )
