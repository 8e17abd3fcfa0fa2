"""validate: every mistake in a bundle's config.json at once, for people; nothing is made, and no root is needed."""

from __future__ import annotations

from gpurun.invocation import Invocation
from gpurun.library.validation import check_file
from gpurun.output import write_lines
from gpurun.paths import absolute_path


def validate(invocation: Invocation) -> int:
    """``validate [BUNDLE]``: 0 when the config can be used, 1 with a line for each mistake when it cannot."""
    bundle = absolute_path(invocation.args[0] if invocation.args else invocation.option("bundle", "."))
    name = invocation.option("config") or "config.json"
    path = name if name.startswith("/") else f"{bundle}/{name}"
    found = check_file(path, bundle)
    wrong = [problem for problem in found if problem.fatal]
    lines = [("" if p.fatal else "note: ") + (f"{p.where}: {p.what}" if p.where else p.what) for p in found]
    if not wrong:
        lines.append(f"{path}: valid")
    write_lines(lines)
    return 1 if wrong else 0
