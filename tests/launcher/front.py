"""Running the compiled front on a container that was made of nothing but a process, and comparing it with the launcher."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gpurun.engine.state import State, own_streams
from gpurun.engine.state import save as save_state
from gpurun.linux.procfs import stat
from gpurun.record import replace

#: What the program says when it would become the launcher and there is none behind it.
FALLS_BACK = "gpurun: cannot become the launcher in "
Done = subprocess.CompletedProcess[str]


class Store:
    """A state root with one container, ``c``, that was made of nothing but a process."""

    def __init__(self, directory: Path, pid: int) -> None:
        self.root = directory / "root"
        self.container = self.root / "c"
        self.container.mkdir(parents=True)
        self.cgroup = directory / "cgroup"
        self.cgroup.mkdir()
        found = stat(pid)
        assert found is not None
        self.state = State("c", "/bundle", "/bundle/rootfs", str(self.cgroup), True, pid, found[1], "2026-01-02T03:04:05.6Z")
        self.state = replace(self.state, streams=own_streams() or '["a\t\u00fc"]', owner="root")
        self.save()
        (self.container / "config.json").write_text('{"process":{}}')

    def save(self, **changes: object) -> None:
        save_state(str(self.root), State(**{**{n: getattr(self.state, n) for n in State._fields}, **changes}))  # type: ignore[arg-type]

    def has_ended(self) -> bool:
        """Whether the process has, so that it is a zombie or gone."""
        found = stat(self.state.pid)
        return found is None or found[0] == "Z"

    def listing(self) -> list[tuple[str, bytes]]:
        """Everything that is there, to be compared."""
        return sorted(
            (str(p.relative_to(self.root.parent)), b"" if not p.is_file() else p.read_bytes())
            for p in self.root.parent.rglob("*")
            if p.name != "log"
        )


def run(program: Path, *args: str | Path, env: dict[str, str] | None = None, tracer: Sequence[str] = ()) -> Done:
    """Run *program*, under *tracer*; the time in what it logs on stderr is left out, for no two runs have the same."""
    argv = [*tracer, str(program), *map(str, args)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env or {})
    done.stderr = re.sub(r'time="[^"]*"', 'time="..."', done.stderr)
    return done


def both(places: Path, store: Store, *args: str) -> Done:
    """Run the bare front, which must not fall back, and the pure launcher; they must say the same."""
    front, pure = [run(places / name, "--root", store.root, *args) for name in ("bare", "pure")]
    assert FALLS_BACK not in front.stderr
    assert (front.returncode, front.stdout, front.stderr) == (pure.returncode, pure.stdout, pure.stderr)
    return front


def falls_back(
    places: Path, store: Store, *args: str | Path, env: dict[str, str] | None = None, tracer: Sequence[str] = ()
) -> None:
    """The bare front must leave the command to the launcher, and have changed nothing."""
    before = store.listing()
    done = run(places / "bare", *args, env=env, tracer=tracer)
    assert done.returncode == 1
    assert done.stderr.startswith(FALLS_BACK), done
    assert done.stdout == ""
    assert store.listing() == before
