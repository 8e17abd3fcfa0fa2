"""Every command that writes: a full disk, ^C at a change, and two of them at once.

A full disk is one sentence with the path, and leaves the files that were there; after ^C the same command does its work, and
nothing of the first is left beside it; of two at once none tears what the other writes.  What ``install`` and ``uninstall``
write is in tests/clients/test_apply.py, and every other call of create, run, exec and delete in test_every_call.py.
"""

# ruff: noqa: F811 - the fixtures are imported
from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.record import Record
from tests.faults.sweep import calls_made, sample
from tests.gpu.leases.conftest import make_host  # noqa: F401
from tests.gpu.leases.test_attach import Box, box, host  # noqa: F401
from tests.native.inject import Injection
from tests.native.runtime import Result, Runtime
from tests.simdriver import SimulatedDriver

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

#: Calls that change a file system.
CHANGES = frozenset("write rename renameat mkdir mkdirat unlink unlinkat symlink symlinkat linkat mknodat".split())  # noqa: SIM905
INTERRUPTED = 4  # of the changes of a command
RESOURCES = '{"unified": {"cgroup.max.descendants": "100"}}'


class Writer(Record):
    """The command *words*, the place that it writes to, what takes it back ("" for nothing) and what a second one is told.

    {id} is the container, which has GPU 0 or what *gpus* says; {bundle} its bundle; {out} a directory, which is a place.
    """

    words: str
    place: str
    back: str = ""
    twice: str = ""
    gpus: str = "0"


WRITERS = {
    "create": Writer("create --bundle {bundle} another", "root", "delete --force another", "already exists"),
    "create, leased": Writer(
        "create --bundle {bundle} another", "leases", "delete --force another", "already exists", "free"
    ),
    "update": Writer("update --resources {out}/resources.json {id}", "root"),
    "update --gpus": Writer("update --gpus 0,2 {id}", "root", "update --gpus 0 {id}"),
    "attach": Writer("gpu attach {id} 1", "root", "gpu detach {id} 1", "has GPU 1"),
    "attach, leased": Writer("gpu attach {id} free", "leases", "update --gpus 0 {id}", "free"),
    "detach": Writer("gpu detach {id} 0", "root", "gpu attach {id} 0", "does not have 0"),
    "lease --release": Writer("gpu lease --release {id}", "leases", "", "has a lease", "free"),
    "cdi generate": Writer("cdi generate --output={out}/nvidia.yaml", "out"),
    "cdi refresh": Writer("cdi refresh --output={out}/nvidia.json", "out"),
    "spec": Writer("spec --bundle {out}", "out", "", "config.json exists"),
}


class Place:
    """A container, and the directory that *writer* writes to; with *small* that is a file system of its own."""

    def __init__(
        self,
        writer: Writer,
        runtime: Runtime,
        box: Callable[..., Box],
        host: SimulatedDriver,
        out: Path,
        small: bool = False,
    ) -> None:
        self.writer, self.runtime, self.small = writer, runtime, small
        self.path = {"root": runtime.root, "leases": host.path / "run/gpurun-leases", "out": out}[writer.place]
        self.path.mkdir(parents=True, exist_ok=True)
        if small:
            self.sh("mount -t tmpfs -o size=1m,mode=755 tmpfs $1")
        self.one = box(writer.gpus)
        if "another" in writer.words:
            self.one.container.bundle.linux.pop("cgroupsPath")
            runtime.prepare(self.one.container.bundle, "another")
        self.names = {"id": self.one.id, "bundle": str(self.one.container.bundle.directory), "out": str(out)}
        if writer.place != "out" or "resources" in writer.words:
            (out / "resources.json").write_text(RESOURCES)

    def sh(self, script: str) -> str:
        """The output of a shell *script* where gpurun runs; $1 is the directory."""
        argv = ["sh", "-euc", script, "sh", str(self.path)]
        done = subprocess.run(argv, preexec_fn=self.runtime.bed.enter(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def call(self, words: str, **how: object) -> Result:
        return self.runtime(*words.format(**self.names).split(), env=self.one.env, **how)  # type: ignore[arg-type]

    def listing(self) -> str:
        """The files with their content, but for locks, which stay, and what only spares work; with what a writer left."""
        left_out = "-name lock -prune -o -name '.*' ! -name . ! -name '*.new' -prune"
        return self.sh(f"cd $1; find . {left_out} -o -type f -exec md5sum {{}} + -o -print | sort -k 2")

    def names_there(self) -> Counter[str]:
        """The names of the files; that of a lease is another one each time."""
        return Counter([re.sub(r"\b[0-9a-f]{32}\b", "LEASE", line.split()[-1]) for line in self.listing().splitlines()])

    def close(self) -> None:
        self.runtime("delete", "--force", "another", env=self.one.env)
        if self.small:
            self.runtime("delete", "--force", self.one.id, env=self.one.env)
            self.sh("umount -l $1")


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest) -> Writer:
    return WRITERS[request.param]


def check(result: Result, codes: tuple[int, ...]) -> None:
    assert result.rc in codes and "Traceback" not in result.text and "internal error" not in result.text, result
    errors = [line for line in result.text.splitlines() if "level=warning" not in line]
    assert result.rc != 1 or len(errors) == 1, result


def test_a_full_disk(
    writer: Writer, runtime: Runtime, box: Callable[..., Box], host: SimulatedDriver, tmp_path: Path
) -> None:
    place = Place(writer, runtime, box, host, tmp_path, small=True)
    try:
        place.sh("cat /dev/zero >$1/.fill 2>/dev/null || true")
        before = place.listing()
        done = place.call(writer.words)
        check(done, (1,))
        assert "no space left on device" in done.text and str(place.path) in done.text, done
        assert place.listing() == before
        place.sh("rm $1/.fill")
        done = place.call(writer.words)
        assert done.rc == 0, done
    finally:
        place.close()


@pytest.mark.sweep(5)
def test_interrupted(
    writer: Writer, runtime: Runtime, box: Callable[..., Box], host: SimulatedDriver, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    place, log = Place(writer, runtime, box, host, out), tmp_path / "strace"
    try:
        tracer = ["strace", "-f", "-qq", "-D", "-I", "2", "-s", "4096", "-o", str(log), "-e", "signal=none"]
        done = place.call(writer.words, tracer=tracer)
        assert done.rc == 0, done
        done_once = place.names_there()
        calls = [call for call in calls_made(log, Path(runtime.path)) if call.name in CHANGES and not call.child]
        interrupted = 0
        for call in sample(calls, INTERRUPTED):
            if writer.back:
                assert place.call(writer.back).rc == 0
            elif writer.place == "out":
                place.sh("rm -f $1/config.json $1/nvidia.*")
            with Injection(log, call.name, "", str(call.number), children=False, signal="INT") as tracer:
                log.write_text("")
                result = place.call(writer.words, tracer=tracer)
            check(result, (0, 1, 130, -2))
            interrupted += result.rc in (130, -2)
            again = place.call(writer.words)
            check(again, (0, 1))
            assert again.rc == 0 or (writer.twice and writer.twice in again.text), (str(call), result, again)
            left = place.names_there() - done_once
            assert not left, (str(call), left)
        assert interrupted or not calls, "none of these was met"
    finally:
        place.close()


@pytest.mark.sweep(5)
def test_two_at_once(
    writer: Writer, runtime: Runtime, box: Callable[..., Box], host: SimulatedDriver, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    place = Place(writer, runtime, box, host, out)
    try:
        words, files = writer.words.format(**place.names).split(), [runtime.new_files() for _ in range(2)]
        racing = [runtime.popen(*words, files=one, env=place.one.env) for one in files]
        codes = [process.wait(120) for process in racing]
        results = [
            Result(code, (one / "out").read_text(), (one / "err").read_text())
            for code, one in zip(codes, files, strict=True)
        ]
        for result in results:
            check(result, (0, 1))
            assert result.rc == 0 or (writer.twice and writer.twice in result.text), result
        assert 0 in codes, results
        if writer.back:
            assert place.call(writer.back).rc == 0
        assert place.runtime("state", place.one.id).rc == 0
    finally:
        place.close()
