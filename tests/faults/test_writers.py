"""Every command that writes: a full disk, ^C at a change, and two of them at once.

A full disk is one sentence with the path, and leaves the files that were there; after ^C the same command does its work, and
nothing of the first is left beside it; of two at once none tears what the other writes.  A command that is not in WRITERS
prints alone (PRINTERS), or has such tests elsewhere (ELSEWHERE).  Every other call of create, run, exec and delete is in
test_every_call.py.
"""

# ruff: noqa: F811 - the fixtures are imported
from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpurun.cli.table import COMMANDS, GROUPS
from gpurun.record import Record
from tests.faults.sweep import calls_made, sample
from tests.gpu.leases.box import Box
from tests.gpu.leases.conftest import box, host, make_host  # noqa: F401
from tests.images.making import USERS, docker_save, layer
from tests.native.inject import Injection
from tests.native.runtime import Result, Runtime
from tests.simdriver import SimulatedDriver

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

#: Calls that change a file system.
CHANGES = frozenset("write rename renameat mkdir mkdirat unlink unlinkat symlink symlinkat linkat mknodat".split())  # noqa: SIM905
INTERRUPTED = 4  # of the changes of a command
CDI = '{"cdiVersion": "0.5.0", "kind": "a.com/b", "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]}'
RESOURCES = '{"unified": {"cgroup.max.descendants": "100"}}'


class Writer(Record):
    """The command *words*, the place that it writes to, what takes it back ("" for nothing) and what a second one is told.

    *ready* is done before it each time.  Of several commands there is a semicolon between two.  {id} is the container, which
    has GPU 0 or what *gpus* says; {bundle} its bundle; {out} a directory, which is a place; {rootfs} one with a shell.

    *on_full*: why it does its work on a full disk all the same.  *never_twice*: why two at once, *never_interrupted* why ^C
    is not tried.
    """

    words: str
    place: str
    back: str = ""
    twice: str = ""
    gpus: str = "0"
    ready: str = ""
    on_full: str = ""
    never_interrupted: str = ""
    few_files: bool = False


CREATE = "create --bundle {bundle} another"
DELETE = "delete --force another"
WRITERS = {
    "create": Writer(CREATE, "root", DELETE, "already exists"),
    "create, leased": Writer(CREATE, "leases", DELETE, "already exists", "free"),
    "run": Writer("run --detach --bundle {bundle} another", "root", DELETE, "already exists"),
    "run, pid file": Writer(
        "run --detach --pid-file {out}/pid --bundle {bundle} another", "out", f"{DELETE}; rm {{out}}/pid", "already exists"
    ),
    "run --trace": Writer(
        "run --trace {out}/trace.svg --bundle {bundle} another",
        "out",
        "rm {out}/trace.svg",
        "already exists",
        never_interrupted="what strace traces cannot be traced by another one",
    ),
    "start": Writer("start another", "root", DELETE, "cannot start", ready=CREATE, on_full="nothing is written"),
    "exec": Writer("exec {id} true", "root", on_full="the plan that is kept for the next one only spares work"),
    "exec, pid file": Writer("exec --pid-file {out}/pid {id} true", "out", "rm {out}/pid"),
    "kill": Writer("kill {id} WINCH", "root", on_full="nothing is written"),
    "pause": Writer(
        "pause {id}", "root", "resume {id}", "container not running", on_full="the cgroup's file alone is written"
    ),
    "resume": Writer(
        "resume {id}", "root", "", "not paused", ready="pause {id}", on_full="the cgroup's file alone is written"
    ),
    "delete": Writer(DELETE, "root", ready=CREATE, on_full="who deletes makes room"),
    "update": Writer("update --resources {given} {id}", "root"),
    "update --gpus": Writer("update --gpus 0,2 {id}", "root", "update --gpus 0 {id}"),
    "attach": Writer("gpu attach {id} 1", "root", "gpu detach {id} 1", "has GPU 1"),
    "attach, leased": Writer("gpu attach {id} free", "leases", "update --gpus 0 {id}", "free"),
    "detach": Writer("gpu detach {id} 0", "root", "gpu attach {id} 0", "does not have 0"),
    "lease --release": Writer("gpu lease --release {id}", "leases", "", "has a lease", "free"),
    "cdi generate": Writer("cdi generate --output={out}/nvidia.yaml", "out", "rm {out}/nvidia.yaml"),
    "cdi refresh": Writer("cdi refresh --output={out}/nvidia.json", "out", "rm {out}/nvidia.json"),
    "cdi transform": Writer(
        "cdi transform root --input {given} --from / --to /host --output={out}/moved.json",
        "out",
        "rm {out}/moved.json",
    ),
    "spec": Writer("spec --bundle {out}", "out", "rm {out}/config.json", "config.json exists"),
    "bundle": Writer("bundle {rootfs} --output {out}/made", "out", "rm {out}/made", "is there already"),
    "bundle, unpacked": Writer("bundle {archive} --output {out}/made", "out", "rm {out}/made", "is there already"),
    "install-names": Writer("install-names {out}", "out", "rm {out}/nvidia-*", few_files=True),
    "nvidia-ctk config": Writer(
        "nvidia-ctk config --in-place --set nvidia-container-runtime.log-level=debug --config {out}/config.toml",
        "out",
        "nvidia-ctk config default --output {out}/config.toml",
        ready="nvidia-ctk config default --output {out}/config.toml",
    ),
}
#: They print, and write nothing but what spares work.
PRINTERS = {
    "state": "state {id}",
    "list": "list",
    "ps": "ps {id}",
    "events": "events --stats {id}",
    "stats": "stats --once {id}",
    "features": "features",
    "validate": "validate {bundle}",
    "explain": "explain {bundle}",
    "gpu list": "gpu list",
    "gpu leases": "gpu leases",
    "gpu explain": "gpu explain {bundle}",
    "cdi list": "cdi list",
    "cdi validate": "cdi validate",
}
#: The tests of these are there, and why.
ELSEWHERE = {
    "checkpoint": ("tests/lifecycle/test_checkpoint_refused.py", "CRIU writes the images, and is not on every host"),
    "restore": ("tests/lifecycle/test_checkpoint_refused.py", "CRIU makes the processes, and is not on every host"),
    "metrics": ("tests/metrics", "it prints; it needs the extra `kubernetes`"),
    "gpu doctor": ("tests/gpu/test_doctor_rootless.py", "it prints; its exit code is the host's"),
    "gpu mig": ("tests/gpu/nvidia/mig/test_apply.py", "it changes GPUs and its own record, by a library that divides some"),
    "install": ("tests/clients/test_apply.py", "clients' configuration, several files together"),
    "uninstall": ("tests/clients/test_apply.py", "clients' configuration, several files together"),
    "hook": ("tests/hook/test_apply_image.py", "it is called by another runtime, in a container"),
    "kubernetes device-plugin": ("tests/kubernetes/test_device_plugin.py", "it serves a kubelet until a signal"),
    "kubernetes dra-driver": ("tests/kubernetes/test_dra_killed.py", "it serves a kubelet until a signal"),
    "kubernetes install-node": ("tests/kubernetes/test_node_install_killed.py", "it writes in a node's root, step by step"),
    "kubernetes uninstall-node": ("tests/kubernetes/install/test_take_back.py", "it takes from a node what was installed"),
    "kubernetes mig-manager": ("tests/kubernetes/test_mig_manager.py", "it follows a label of the node until a signal"),
    "kubernetes labels": ("tests/kubernetes/test_labels.py", "it needs the extra `kubernetes`"),
    "kubernetes manifests": ("tests/kubernetes/manifests", "it prints; it needs the extra `kubernetes`"),
    "kubernetes explain": ("tests/kubernetes/pending", "it prints, and asks an API server"),
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
            files = ",nr_inodes=64" if writer.few_files else ""
            self.sh(f"mount -t tmpfs -o size={8 if 'image' in writer.words else 1}m,mode=755{files} tmpfs $1")
        self.one = box(writer.gpus)
        if "another" in writer.words + writer.ready:
            self.one.container.bundle.linux.pop("cgroupsPath")
            if "--trace" in writer.words:  # which waits for its end
                self.one.container.bundle.args("true")
            runtime.prepare(self.one.container.bundle, "another")
        self.links = out.parent / f"{out.name}.links"
        self.links.mkdir()
        (self.links / "nvidia-ctk").symlink_to(runtime.path)
        bundle = self.one.container.bundle
        self.names = {"id": self.one.id, "bundle": str(bundle.directory), "rootfs": str(bundle.rootfs), "out": str(out)}
        if "{archive}" in writer.words:
            shell = layer(*USERS, ("bin/sh", "file", "#!" * 40_000))
            self.names["archive"] = str(docker_save(self.links / "image.tar", shell))
        self.names["given"] = str(self.links / "given.json")
        (self.links / "given.json").write_text(CDI if "cdi" in writer.words else RESOURCES)
        self.do(writer.ready)

    def sh(self, script: str) -> str:
        """The output of a shell *script* where gpurun runs; $1 is the directory."""
        argv = ["sh", "-euc", script, "sh", str(self.path)]
        done = subprocess.run(argv, preexec_fn=self.runtime.bed.enter(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def popen(self, words: str, files: Path, tracer: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        argv = words.format(**self.names).split()
        if argv[0] != "nvidia-ctk":
            return self.runtime.popen(*argv, files=files, env=self.one.env, tracer=tracer)
        argv, before_exec = self.runtime.bed.command([*tracer, str(self.links / argv[0]), *argv[1:]], None)
        with open(files / "out", "ab") as out, open(files / "err", "ab") as err:
            return subprocess.Popen(argv, stdout=out, stderr=err, env=self.one.env, preexec_fn=before_exec)

    def call(self, words: str, tracer: Sequence[str] = ()) -> Result:
        files = self.runtime.new_files()
        return said(self.popen(words, files, tracer).wait(120), files)

    def do(self, several: str) -> None:
        """Do what makes ready, or takes back."""
        for words in several.split("; ") if several else ():
            if words.startswith("rm "):
                self.sh(f"rm -rf {words[3:].format(**self.names)}")
            else:
                done = self.call(words)
                assert done.rc == 0, (words, done)

    def again(self) -> None:
        """As before the command."""
        self.do(self.writer.back)
        self.do(self.writer.ready)

    def program(self) -> Path:
        """What is executed."""
        return self.links / "nvidia-ctk" if self.writer.words.startswith("nvidia-ctk") else Path(self.runtime.path)

    def listing(self) -> str:
        """The files with their content, but for locks, which stay, and what only spares work; with what a writer left."""
        left_out = "-name lock -prune -o -name '.*' ! -name . ! -name '*.new' -prune"
        return self.sh(f"cd $1; find . {left_out} -o -type f -exec md5sum {{}} + -o -print | sort -k 2")

    def names_there(self) -> Counter[str]:
        """The names of the files; that of a lease is another one each time."""
        return Counter([re.sub(r"\b[0-9a-f]{32}\b", "LEASE", line.split()[-1]) for line in self.listing().splitlines()])

    def fill(self) -> None:
        if self.writer.few_files:
            self.sh("i=0; while (: >$1/.fill.$i) 2>/dev/null; do i=$((i + 1)); done")
        self.sh("cat /dev/zero >$1/.fill 2>/dev/null || true")

    def close(self) -> None:
        self.runtime("delete", "--force", "another", env=self.one.env)
        if self.small:
            self.runtime("delete", "--force", self.one.id, env=self.one.env)
            self.sh("umount -l $1")


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest) -> Writer:
    return WRITERS[request.param]


def said(code: int, files: Path) -> Result:
    return Result(code, (files / "out").read_text(), (files / "err").read_text())


def check(result: Result, codes: tuple[int, ...]) -> None:
    assert result.rc in codes and "Traceback" not in result.text and "internal error" not in result.text, result
    errors = [line for line in result.text.splitlines() if "level=warning" not in line]
    assert result.rc not in (1, 255) or len(errors) == 1, result


def name_of(words: str) -> str:
    """As the table of the command line has it, with the group's first."""
    first, *rest = words.split()
    return f"{first} {rest[0]}" if first in GROUPS else first


def test_every_command_is_here() -> None:
    """A new one goes into one of the three tables; who moves the tests of another says where they are now."""
    commands = {name for name in COMMANDS if name not in GROUPS} | {f"{n} {more}" for n in GROUPS for more in GROUPS[n]}
    written = {name_of(writer.words) for writer in WRITERS.values()} - {"nvidia-ctk"}
    tables = [*written, *PRINTERS, *ELSEWHERE]
    assert sorted(tables) == sorted(commands)
    assert all(name_of(words) == name for name, words in PRINTERS.items())
    root = Path(__file__).parents[2]
    assert [place for place, _ in ELSEWHERE.values() if not (root / place).exists()] == []


def test_a_full_disk(
    writer: Writer, runtime: Runtime, box: Callable[..., Box], host: SimulatedDriver, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    place = Place(writer, runtime, box, host, out, small=True)
    try:
        place.fill()
        before = place.listing()
        done = place.call(writer.words)
        if writer.on_full:
            assert done.rc == 0, done
            check(done, (0,))
            return
        check(done, (255,) if writer.words.startswith("exec") else (1,))
        assert "no space left on device" in done.text and str(place.path) in done.text, done
        assert place.listing() == before
        place.sh("rm -f $1/.fill*")
        done = place.call(writer.words)
        assert done.rc == 0, done
    finally:
        place.close()


def test_what_prints_does_so_on_a_full_disk(
    runtime: Runtime, box: Callable[..., Box], host: SimulatedDriver, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    place = Place(WRITERS["kill"], runtime, box, host, out, small=True)
    try:
        place.fill()
        for words in PRINTERS.values():
            done = place.call(words)
            assert done.rc == 0 and done.text, (words, done)
            assert "Traceback" not in done.text and "internal error" not in done.text, (words, done)
    finally:
        place.close()


@pytest.mark.sweep(5)
def test_interrupted(
    writer: Writer, runtime: Runtime, box: Callable[..., Box], host: SimulatedDriver, tmp_path: Path
) -> None:
    if writer.never_interrupted:
        pytest.skip(f"no ^C here: {writer.never_interrupted}")
    out = tmp_path / "out"
    out.mkdir()
    place, log = Place(writer, runtime, box, host, out), tmp_path / "strace"
    try:
        tracer = ["strace", "-f", "-qq", "-D", "-I", "2", "-s", "4096", "-o", str(log), "-e", "signal=none"]
        done = place.call(writer.words, tracer)
        assert done.rc == 0, done
        done_once = place.names_there()
        calls = [call for call in calls_made(log, place.program()) if call.name in CHANGES and not call.child]
        interrupted = 0
        for call in sample(calls, INTERRUPTED):
            place.again()
            with Injection(log, call.name, "", str(call.number), children=False, signal="INT") as tracer:
                log.write_text("")
                result = place.call(writer.words, tracer)
            check(result, (0, 1, 130, -2, 255))
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
        files = [runtime.new_files() for _ in range(2)]
        racing = [place.popen(writer.words, one) for one in files]
        codes = [process.wait(120) for process in racing]
        results = [said(code, one) for code, one in zip(codes, files, strict=True)]
        for result in results:
            check(result, (0, 1))
            assert result.rc == 0 or (writer.twice and writer.twice in result.text), result
        assert 0 in codes, results
        place.again()
        assert place.runtime("state", place.one.id).rc == 0
    finally:
        place.close()
