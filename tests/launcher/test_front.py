"""The compiled front does what the launcher does for plain containers, and leaves everything else to it, untouched."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from gpurun.builder.front import compiler
from gpurun.engine.state import State
from gpurun.linux.procfs import stat
from tests.launcher.front import FALLS_BACK, Store, both, falls_back, run
from tests.native.bed import Bed, remove_cgroup
from tests.native.waiting import wait_until

pytestmark = pytest.mark.skipif(not compiler(), reason="there is no C compiler here")


# ---- state


@pytest.mark.parametrize("annotations", ["{}", '{"a":"b"}', '{"org.example":"\\u00fc \\"x\\"","z":""}'])
def test_state_is_the_same_text(places: Path, store: Store, annotations: str) -> None:
    store.save(annotations=annotations)
    assert '"status": "running"' in both(places, store, "state", "c").stdout
    os.mkfifo(store.container / "exec.fifo")
    assert '"status": "created"' in both(places, store, "state", "c").stdout
    (store.cgroup / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert '"status": "paused"' in both(places, store, "state", "c").stdout


@pytest.mark.parametrize(
    "changes",
    [
        {"created": ""},
        {"bundle": '/a "quoted" one'},
        {"rootfs": "/\u00fc"},
        {"annotations": '{"a":"\u00fc"}'},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_states_left_to_the_launcher(places: Path, store: Store, changes: dict[str, object]) -> None:
    """What is being created, or is not plain ASCII."""
    store.save(**changes)
    falls_back(places, store, "--root", store.root, "state", "c")
    whole, pure = [run(places / name, "--root", store.root, "state", "c") for name in ("whole", "pure")]
    assert (whole.returncode, whole.stdout, whole.stderr) == (pure.returncode, pure.stdout, pure.stderr)


@pytest.mark.parametrize("changes", [{"start_time": 1}, {"pid": 0}], ids=str)
@pytest.mark.parametrize("events", [None, "oom 0\noom_kill 0\noom_group_kill 0\n"])
def test_state_of_what_has_stopped(places: Path, store: Store, changes: dict[str, object], events: str | None) -> None:
    store.save(**changes)
    if events is not None:
        (store.cgroup / "memory.events").write_text(events)
    said = both(places, store, "state", "c").stdout
    assert '"status": "stopped"' in said and '"pid": 0,' in said


def test_state_of_what_memory_has_ended_is_the_launchers(places: Path, store: Store) -> None:
    store.save(pid=0)
    (store.cgroup / "memory.events").write_text("oom 1\noom_kill 1\noom_group_kill 0\n")
    falls_back(places, store, "--root", store.root, "state", "c")
    assert '"kills": 1' in run(places / "whole", "--root", store.root, "state", "c").stdout


def test_cgroup_files_that_cannot_be_read(places: Path, store: Store) -> None:
    """Not being able to tell is not the same as no: the launcher says what is wrong."""
    (store.cgroup / "cgroup.events").mkdir()
    falls_back(places, store, "--root", store.root, "state", "c")
    whole, pure = [run(places / name, "--root", store.root, "state", "c") for name in ("whole", "pure")]
    assert (whole.returncode, whole.stderr) == (pure.returncode, pure.stderr) == (1, whole.stderr)
    assert "is a directory" in whole.stderr and whole.stderr.count("\n") == 1


@pytest.mark.parametrize("name", State._fields)
def test_damaged_state(places: Path, store: Store, name: str) -> None:
    """A field that is missing, twice there, or not known."""
    good = (store.container / "state").read_text()
    line = next(line for line in good.splitlines(True) if line.startswith(f"{name}="))
    for bad in (good.replace(line, ""), good + line, good.replace(line, "x" + line), good.rstrip("\n"), "", "\0" + good):
        (store.container / "state").write_text(bad)
        falls_back(places, store, "--root", store.root, "state", "c")


@pytest.mark.parametrize("damage", ["xpid=1\n{}", "{}x=1\n", "{}x=\n", "{}pid\n", "\n{}", "{}\n", "{}=1\n", "{}x"])
def test_lines_that_are_none_beside_those_that_are(places: Path, store: Store, damage: str) -> None:
    (store.container / "state").write_text(damage.format((store.container / "state").read_text()))
    falls_back(places, store, "--root", store.root, "state", "c")


@pytest.mark.parametrize("value", ["-1", "+5", " 5", "5x", "", "0x10", "9" * 19])
@pytest.mark.parametrize("name", ["pid", "start_time", "keeper", "oom_kills"])
def test_numbers_are_plain(places: Path, store: Store, name: str, value: str) -> None:
    good = (store.container / "state").read_text()
    (line,) = [line for line in good.splitlines(True) if line.startswith(f"{name}=")]
    (store.container / "state").write_text(good.replace(line, f"{name}={value}\n"))
    if (name, value) == ("oom_kills", "-1"):  # not known: of a container without a scope
        assert good == (store.container / "state").read_text()
        both(places, store, "state", "c")
    else:
        falls_back(places, store, "--root", store.root, "state", "c")


@pytest.mark.parametrize("name", ["pid", "keeper"])
def test_pids_have_31_bits(places: Path, store: Store, name: str) -> None:
    store.save(**{name: 1 << 31})
    falls_back(places, store, "--root", store.root, "state", "c")


def test_any_bytes_for_a_state(places: Path, store: Store) -> None:
    """Thousands of damaged state files: an answer or the launcher, never an access outside of the buffers."""
    program = places / "checked"
    if not program.exists():
        pytest.skip("the compiler has no sanitizers")
    store.save(annotations='{"a":"b"}')
    good = (store.container / "state").read_bytes()
    seed = random.Random(7)
    words = [b"\n", b"=", b"\0", b"pid=", b"%s%n", b"\xff", b"{}", b"9" * 400, b"a" * 5000, b"created=\n", b"\n\n", b"id="]
    for turn in range(400):
        bad = bytearray(good)
        for _ in range(seed.randrange(1, 5)):
            at = seed.randrange(len(bad) + 1)
            bad[at : at + seed.randrange(0, 12)] = seed.choice(words)
        (store.container / "state").write_bytes(bytes(bad))
        command = ("state", "kill", "start", "delete", "pause", "resume")[turn % 6]
        extra = ["0"] if command == "kill" else []
        done = subprocess.run([program, "--root", store.root, command, "c", *extra], capture_output=True, timeout=60, env={})
        assert done.returncode in (0, 1), (done.stderr, bytes(bad))
        assert done.returncode == 0 or done.stderr.startswith(FALLS_BACK.encode()), (done.stderr, bytes(bad))
        store.container.mkdir(exist_ok=True)
        store.cgroup.mkdir(exist_ok=True)
        (store.container / "config.json").write_text("{}")


def test_the_biggest_state(places: Path, store: Store) -> None:
    """What does not fit the buffers is the launcher's."""
    program = places / ("checked" if (places / "checked").exists() else "bare")
    for size, fits in ((100_000, True), (255_000, True), (262_144, False), (400_000, False)):
        store.save(annotations='{"a":"%s"}' % ("x" * size))
        done = run(program, "--root", store.root, "state", "c")
        assert done.stderr.startswith(FALLS_BACK) is not fits
        assert (done.returncode == 0) is fits
    falls_back(places, store, "--root", store.root, "state", "c")


@pytest.mark.parametrize("name", ["state", "config.json"])
@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "missing"])
def test_what_is_no_file(places: Path, store: Store, name: str, kind: str) -> None:
    """Nothing but a file is opened: a FIFO would hold the command for ever."""
    path = store.container / name
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    falls_back(places, store, "--root", store.root, "delete", "--force", "c")


@pytest.mark.parametrize(
    "changes", [{"id": "d"}, {"id": ""}, {"id": "../root/c"}, {"pid": 1 << 31}, {"keeper": 1 << 31}], ids=str
)
@pytest.mark.parametrize("command", ["state", "delete"])
def test_what_no_state_of_it_can_say(places: Path, store: Store, changes: dict[str, object], command: str) -> None:
    """That of another container, as a copy of a state directory has it, or numbers of no process."""
    lines = (store.container / "state").read_text().splitlines()
    fields: dict[str, object] = {line.partition("=")[0]: line.partition("=")[2] for line in lines}
    text = "".join(f"{name}={value}\n" for name, value in {**fields, **changes}.items())
    (store.container / "state").write_text(text)
    falls_back(places, store, "--root", store.root, command, "c")
    assert "is damaged" in run(places / "whole", "--root", store.root, command, "c").stderr
    os.kill(store.state.pid, 0)


@pytest.mark.parametrize("options", [[], ["--log-format", "json"], ["--log", "{}"], ["--log", "{}", "--log-format=json"]])
def test_stdout_that_is_full(places: Path, store: Store, tmp_path: Path, options: list[str]) -> None:
    """Some of it has been written, so the front says so itself, as the launcher would."""
    said = []
    for name in ("bare", "pure"):
        log = tmp_path / f"{name}.log"
        words = [word.format(log) for word in options]
        with (tmp_path / "out").open("wb") as out:
            command = [str(places / name), "--root", str(store.root), *words, "state", "c"]
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, preexec_fn=_limit_files
            )
        assert done.returncode == 1 and "cannot write to stdout: file too large" in done.stderr
        logged = log.read_text() if log.exists() else ""
        said.append([re.sub(r"20\d\d-[^\"]*", "", text) for text in (done.stderr, logged)])
    assert said[0] == said[1]


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))


# ---- start


@pytest.mark.parametrize("config", ["{}", '{"hooks":{}}', '{"hooks":{"prestart":[{"path":"/x"}],"startContainer":[]}}'])
def test_start_releases_once(places: Path, store: Store, config: str) -> None:
    """Engines write hooks for the network, which create has called, and an empty object where there are none."""
    (store.container / "config.json").write_text(config)
    fifo = store.container / "exec.fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    done = run(places / "bare", "--root", store.root, "start", "c")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.read(reader, 10) == b"0"
    assert not fifo.exists()
    for name in ("whole", "pure"):
        again = run(places / name, "--root", store.root, "start", "c")
        assert again.returncode == 1
        assert "cannot start an already running container" in again.stderr
    os.close(reader)


@pytest.mark.parametrize(
    "config", ['{"hooks":{"poststart":[]}}', '{"hooks":{"poststop":[]}}', '{"hooks":{"post\\u0073tart":[]}}', None]
)
def test_start_with_hooks_is_the_launchers(places: Path, store: Store, config: str | None) -> None:
    fifo = store.container / "exec.fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    (store.container / "config.json").unlink()
    if config is not None:
        (store.container / "config.json").write_text(config)
    falls_back(places, store, "--root", store.root, "start", "c")
    os.close(reader)


@pytest.mark.parametrize("state", ["stopped", "paused"])
def test_start_of_what_does_not_wait_for_it(places: Path, store: Store, state: str) -> None:
    """Though there is a FIFO, and somebody at its other end."""
    os.mkfifo(store.container / "exec.fifo")
    reader = os.open(store.container / "exec.fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        if state == "paused":
            (store.cgroup / "cgroup.events").write_text("populated 1\nfrozen 1\n")
        else:
            store.save(pid=0)
        falls_back(places, store, "--root", store.root, "start", "c")
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_start_without_a_reader_or_for_systemd(places: Path, store: Store) -> None:
    os.mkfifo(store.container / "exec.fifo")
    falls_back(places, store, "--root", store.root, "start", "c")  # ENXIO: nobody waits
    reader = os.open(store.container / "exec.fifo", os.O_RDWR | os.O_NONBLOCK)
    falls_back(places, store, "--root", store.root, "start", "c", env={"NOTIFY_SOCKET": "/run/x"})
    os.close(reader)


# ---- kill


@pytest.mark.parametrize(("word", "number"), [("TERM", 15), ("SIGKILL", 9), ("9", 9), ("SIGUSR1", 10), (None, 15)])
def test_kill(places: Path, tmp_path: Path, word: str | None, number: int) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        store = Store(tmp_path, process.pid)
        done = run(places / "bare", "--root", store.root, "kill", "c", *([word] if word else []))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert process.wait(60) == -number


@pytest.mark.parametrize("word", ["65", "-9", "", "SIGRTMIN+1", "sigterm", "WINCH", "KILLER", "9x", "99999999999999999999"])
def test_signals_left_to_the_launcher(places: Path, store: Store, word: str) -> None:
    falls_back(places, store, "--root", store.root, "kill", "c", word)
    os.kill(store.state.pid, 0)


def test_kill_of_a_shared_pid_namespace_or_another_process(places: Path, store: Store) -> None:
    store.save(private_pid=False)
    falls_back(places, store, "--root", store.root, "kill", "c", "KILL")
    store.save(start_time=store.state.start_time + 1)  # the pid is another process' by now
    falls_back(places, store, "--root", store.root, "kill", "c", "TERM")
    falls_back(places, store, "--root", store.root, "kill", "--all", "c", "KILL")
    found = stat(store.state.pid)
    assert found is not None and found[0] == "S"
    status = Path(f"/proc/{store.state.pid}/status").read_text()
    assert [int(bits, 16) for bits in re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)$", status, re.MULTILINE)] == [0, 0]


# ---- pause, resume


@pytest.mark.native
def test_pause_and_resume(places: Path, store: Store, bed: Bed) -> None:
    group = bed.cgroup(bed.subtree) / "front"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(store.state.pid))
        store.save(cgroup=str(group))
        for command, frozen in (
            ("pause", "frozen 1"),
            ("resume", "frozen 0"),
            ("pause", "frozen 1"),
            ("resume", "frozen 0"),
        ):
            done = run(places / "bare", "--root", store.root, command, "c")
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
            if command == "pause":
                assert frozen in (group / "cgroup.events").read_text()
            else:
                assert (group / "cgroup.freeze").read_text() == "0\n"
                wait_until(lambda: "frozen 0" in (group / "cgroup.events").read_text())
    finally:
        os.kill(store.state.pid, signal.SIGKILL)
        remove_cgroup(group)


@pytest.mark.parametrize(
    ("command", "events"),
    [("pause", "frozen 1\n"), ("resume", "frozen 0\n"), ("pause", None), ("resume", "frozen 1\n")],
    ids=["paused", "not paused", "no cgroup", "no cgroup.freeze"],
)
def test_what_cannot_be_paused_or_resumed(places: Path, store: Store, command: str, events: str | None) -> None:
    if events is not None:
        (store.cgroup / "cgroup.events").write_text(f"populated 1\n{events}")
    falls_back(places, store, "--root", store.root, command, "c")


def test_a_stopped_container_cannot_be_paused(places: Path, store: Store) -> None:
    store.save(pid=0)
    for command in ("pause", "resume"):
        falls_back(places, store, "--root", store.root, command, "c")


def test_a_cgroup_that_does_not_freeze_is_thawed_for_the_launcher(places: Path, store: Store) -> None:
    (store.cgroup / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (store.cgroup / "cgroup.freeze").write_text("x")
    done = run(places / "bare", "--root", store.root, "pause", "c")
    assert done.stderr.startswith(FALLS_BACK)
    assert (store.cgroup / "cgroup.freeze").read_text() == "0"
