"""validate: every mistake in a bundle's config.json at once; nothing is made, and no root is needed.

The JSON form is for programs and only ever grows: ``config`` (the file), ``valid``, and ``problems``, each with ``where``
(the JSON path, empty where no field is meant), ``what``, and ``fatal`` (false: it is only ignored).
"""

from __future__ import annotations

import os

from gpurun.formats.jsontext import dumps
from gpurun.invocation import Invocation
from gpurun.library.validation import check_file
from gpurun.output import write_lines, write_stdout
from gpurun.paths import absolute_path
from gpurun.record import to_plain


def validate(invocation: Invocation) -> int:
    """``validate [BUNDLE]``: 0 when the config can be used, 1 with a line for each mistake when it cannot.

    Raises :class:`GpurunError` when there is none to read, and for another ``--format``.
    """
    form = invocation.form()
    bundle = absolute_path(invocation.args[0] if invocation.args else invocation.option("bundle", "."))
    name = invocation.option("config") or "config.json"
    if os.path.isfile(bundle) and "config" not in invocation.options:  # the file itself is named
        bundle, _, name = bundle.rpartition("/")
    path = name if name.startswith("/") else f"{bundle}/{name}"
    found = check_file(path, bundle, "config" in invocation.options)
    wrong = [problem for problem in found if problem.fatal]
    if form == "json":
        answer = {"config": path, "valid": not wrong, "problems": [to_plain(problem) for problem in found]}
        write_stdout(dumps(answer, 2) + "\n")
        return 1 if wrong else 0
    lines = [("" if p.fatal else "note: ") + (f"{p.where}: {p.what}" if p.where else p.what) for p in found]
    if not wrong:
        lines.append(f"{path}: valid")
    write_lines(lines)
    return 1 if wrong else 0
