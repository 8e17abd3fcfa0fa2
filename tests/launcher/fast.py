"""Having the compiled front alone do an exec that the launcher has left a plan for."""

from __future__ import annotations

import json
from pathlib import Path
from struct import pack
from typing import Any

from gpurun.engine.caller.kept_plan import NAME, NUMBERS, TEXTS
from tests.launcher.front import FALLS_BACK
from tests.native.runtime import Container, Result, Runtime

FOREVER = "while :; do sleep 0.1; done"


class Fast:
    """The bare front on the containers of ``whole``, which is the same with the launcher behind it."""

    def __init__(self, runtime: Runtime, places: Path, program: str = "bare") -> None:
        self.runtime, self.whole, self.pure, self.program = runtime, places / "whole", places / "pure", places / program
        runtime.path = str(self.whole)

    def plan(self, container: Container) -> Path:
        return self.runtime.root / container.id / NAME

    def prime(self, container: Container, *words: str) -> None:
        """Have an exec done by the launcher, and let the bare front go by the plan of that."""
        assert self.by(self.whole, *words).rc == 0
        found, at = self.program.stat(), 8 * (len(NUMBERS) + len(TEXTS))
        data = bytearray(self.plan(container).read_bytes())
        data[at : at + 32] = pack("4Q", found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        self.plan(container).write_bytes(data)

    def by(self, program: Path, *words: str, **how: Any) -> Result:
        self.runtime.path = str(program)
        try:
            return self.runtime("exec", *words, **how)
        finally:
            self.runtime.path = str(self.whole)

    def __call__(self, *words: str, **how: Any) -> Result:
        return self.by(self.program, *words, **how)

    def falls_back(self, *words: str, **how: Any) -> None:
        done = self(*words, **how)
        assert (done.rc, done.out) == (1, ""), done
        assert FALLS_BACK in done.err, done


def process_file(container: Container, args: list[str], **changes: Any) -> str:
    """The name of a process file as an engine writes it: the container's own process with other arguments."""
    path = container.files / "process.json"
    path.write_text(json.dumps({**container.bundle.process, "args": args, **changes}))
    return str(path)


def is_exec(pid: str) -> bool:
    return name_of(pid) == "gpurun:[exec]"


def name_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it has gone
