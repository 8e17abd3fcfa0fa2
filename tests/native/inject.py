"""System calls of a runtime that fail because we say so: strace(1) answers them in the kernel's place."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest


class Injection:
    """``with Injection(...) as tracer: runtime("create", ..., tracer=tracer)`` traces the runtime and all that it starts.

    *calls* (a name, or several with commas) fail with *error* at each invocation that *when* names, counted in each
    process alone: ``"1"``, ``"3+"``, ``"2..4"``.  With *path* only those count that name it, or a descriptor of it.  Without
    *children* the calls of the started process alone fail.  With *signal* in the place of an error they do not fail, but the
    process gets that signal.  With *done* they say that they have succeeded, and have done nothing.
    """

    def __init__(
        self,
        log: Path,
        calls: str,
        error: str,
        when: str = "1+",
        path: Path | str | None = None,
        children: bool = True,
        signal: str = "",
        done: bool = False,
    ) -> None:
        self.log = log
        effect = f"signal={signal}" if signal else "retval=0" if done else f"error={error}"
        self.argv = ["strace", "-D", "-I", "2", *(["-f"] if children else []), "-qq", "-o", str(log)]
        self.argv += ["-e", f"trace={calls}", "-e", "signal=none"]
        self.argv += ["-e", f"inject={calls}:{effect}:when={when}"]
        self.argv += [] if path is None else ["-P", str(path)]

    def __enter__(self) -> list[str]:
        if not shutil.which("strace"):
            pytest.skip("strace is not installed")
        self._before = _tracers()
        return self.argv

    def __exit__(self, *_: object) -> None:
        """End the tracer, which would stay for as long as a process of the container lives; those go on untraced."""
        for pid in _tracers() - self._before:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)

    @property
    def injected(self) -> list[str]:
        """The lines of strace about calls that were made to fail."""
        return [line for line in self.log.read_text().splitlines() if "(INJECTED)" in line]


def _tracers() -> set[int]:
    """The strace processes among our children: with -D it is no ancestor of what it traces, and so it becomes ours."""
    children = Path("/proc/thread-self/children").read_text().split()
    return {int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "strace\n"}
