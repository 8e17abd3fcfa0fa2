"""run --trace: the launch of a container as a timeline, measured by strace(1) from outside.

Nothing of this is in the way of a container that is not traced: gpurun runs once more, under strace, and what that writes
is read when the container has ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile

from gpurun.errors import GpurunError, StepError
from gpurun.formats.strace import parse_calls
from gpurun.launcher.fresh_interpreter import MAIN_ENTRY, child_command
from gpurun.launcher.sealed import all_variables
from gpurun.library.timeline import as_text, timeline
from gpurun.library.timeline_svg import as_html, as_svg
from gpurun.linux.files import write_atomically
from gpurun.output import write_stderr

_OPTION = "trace"


def traced_run(file: str, container_id: str) -> int:
    """Do what the command line says without ``--trace``, and write the timeline to *file*; the container's exit code.

    Its ending says the form: ``.svg``, ``.html``, else text; ``-`` is stderr.  Raises :class:`GpurunError` without strace,
    and when *file* cannot be written.
    """
    strace = shutil.which("strace", path="/usr/local/bin:/usr/bin:/bin")
    if strace is None:
        raise GpurunError("run --trace needs strace, which is not installed (`apt-get install strace`)")
    child = child_command(MAIN_ENTRY)
    with tempfile.TemporaryDirectory(prefix="gpurun-") as directory:
        record = f"{directory}/calls"
        words = [strace, "-f", "-qq", "-ttt", "-T", "-s", "96", "-o", record, *child.argv, *_without_option(sys.argv[1:])]
        if child.fd is not None:
            os.set_inheritable(child.fd, True)
        old = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGQUIT)]
        try:
            # The terminal's signals are for the container, to which gpurun hands them on.
            code = subprocess.run(words, close_fds=False, env=all_variables(), preexec_fn=_default_signals).returncode
        finally:
            for number, handler in old:
                signal.signal(number, handler)
        with open(record, encoding="utf-8", errors="replace") as lines:
            steps = timeline(parse_calls(lines))
    title = f"gpurun run {container_id}"
    text = as_svg(steps, title) if file.endswith(".svg") else as_html(steps, title) if _is_page(file) else as_text(steps)
    if file == "-":
        for line in text.splitlines():
            write_stderr(line)
        return code
    try:
        write_atomically(file, text.encode("utf-8", "surrogateescape"), 0o666)
    except OSError as e:
        raise StepError("write the timeline", file, e.errno) from None
    return code if code >= 0 else 128 - code


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _is_page(file: str) -> bool:
    return file.endswith((".html", ".htm"))


def _without_option(words: list[str]) -> list[str]:
    """The command line without ``--trace FILE``."""
    found: list[str] = []
    skip = False
    for word in words:
        name, equals, _ = word.lstrip("-").partition("=")
        if skip:
            skip = False
        elif word.startswith("-") and name == _OPTION:
            skip = not equals
        else:
            found.append(word)
    return found
