"""The compiled front does what the launcher does for plain containers, and leaves everything else to it, untouched."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.engine.state import State
from gpurun.launcher.front import compile_front, compiler, join
from gpurun.linux.proc import stat
from tests.launcher.front import DOUBTS, Store, both, doubts, run

pytestmark = pytest.mark.skipif(not compiler(), reason="there is no C compiler here")


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that sleeps, for a container's first one."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def store(tmp_path: Path, sleeper: int) -> Store:
    return Store(tmp_path, sleeper)


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
        {"start_time": 1},
        {"pid": 0},
        {"bundle": '/a "quoted" one'},
        {"rootfs": "/\u00fc"},
        {"annotations": '{"a":"\u00fc"}'},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_states_left_to_the_launcher(places: Path, store: Store, changes: dict[str, object]) -> None:
    """What is being created, has stopped, or is not plain ASCII."""
    store.save(**changes)
    doubts(places, store, "--root", store.root, "state", "c")
    whole, pure = [run(places / name, "--root", store.root, "state", "c") for name in ("whole", "pure")]
    assert (whole.returncode, whole.stdout, whole.stderr) == (pure.returncode, pure.stdout, pure.stderr)


@pytest.mark.parametrize("name", State._fields)
def test_damaged_state(places: Path, store: Store, name: str) -> None:
    """A field that is missing, twice there, or not known."""
    good = (store.container / "state").read_text()
    line = next(line for line in good.splitlines(True) if line.startswith(f"{name}="))
    for bad in (good.replace(line, ""), good + line, good.replace(line, "x" + line), good.rstrip("\n"), "", "\0" + good):
        (store.container / "state").write_text(bad)
        doubts(places, store, "--root", store.root, "state", "c")


@pytest.mark.parametrize("pid", ["-1", "+5", " 5", "5x", "", "0x10", "9" * 19])
def test_numbers_are_plain(places: Path, store: Store, pid: str) -> None:
    good = (store.container / "state").read_text()
    (store.container / "state").write_text(good.replace(f"pid={store.state.pid}\n", f"pid={pid}\n", 1))
    doubts(places, store, "--root", store.root, "state", "c")


def test_any_bytes_for_a_state(places: Path, store: Store) -> None:
    """Thousands of damaged state files: an answer or a doubt, never an access outside of the buffers."""
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
        command = ("state", "kill", "start", "delete")[turn % 4]
        extra = ["0"] if command == "kill" else []
        done = subprocess.run([program, "--root", store.root, command, "c", *extra], capture_output=True, timeout=60, env={})
        assert done.returncode in (0, 1), (done.stderr, bytes(bad))
        assert done.returncode == 0 or done.stderr.startswith(DOUBTS.encode()), (done.stderr, bytes(bad))
        store.container.mkdir(exist_ok=True)
        store.cgroup.mkdir(exist_ok=True)
        (store.container / "config.json").write_text("{}")


def test_the_biggest_state(places: Path, store: Store) -> None:
    """What does not fit the buffers is the launcher's."""
    program = places / ("checked" if (places / "checked").exists() else "bare")
    for size, fits in ((100_000, True), (255_000, True), (262_144, False), (400_000, False)):
        store.save(annotations='{"a":"%s"}' % ("x" * size))
        done = run(program, "--root", store.root, "state", "c")
        assert done.stderr.startswith(DOUBTS) is not fits
        assert (done.returncode == 0) is fits
    doubts(places, store, "--root", store.root, "state", "c")


# ---- start


def test_start_releases_once(places: Path, store: Store) -> None:
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


@pytest.mark.parametrize("config", ['{"hooks":{}}', '{"hooks":{"poststart":[]}}', None])
def test_start_with_hooks_is_the_launchers(places: Path, store: Store, config: str | None) -> None:
    fifo = store.container / "exec.fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    (store.container / "config.json").unlink()
    if config is not None:
        (store.container / "config.json").write_text(config)
    doubts(places, store, "--root", store.root, "start", "c")
    os.close(reader)


def test_start_without_a_reader_or_for_systemd(places: Path, store: Store) -> None:
    os.mkfifo(store.container / "exec.fifo")
    doubts(places, store, "--root", store.root, "start", "c")  # ENXIO: nobody waits
    reader = os.open(store.container / "exec.fifo", os.O_RDWR | os.O_NONBLOCK)
    doubts(places, store, "--root", store.root, "start", "c", env={"NOTIFY_SOCKET": "/run/x"})
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
    doubts(places, store, "--root", store.root, "kill", "c", word)
    os.kill(store.state.pid, 0)


def test_kill_of_a_shared_pid_namespace_or_another_process(places: Path, store: Store) -> None:
    store.save(private_pid=False)
    doubts(places, store, "--root", store.root, "kill", "c", "KILL")
    store.save(start_time=store.state.start_time + 1)  # the pid is another process' by now
    doubts(places, store, "--root", store.root, "kill", "c", "TERM")
    doubts(places, store, "--root", store.root, "kill", "--all", "c", "KILL")
    time.sleep(0.05)
    found = stat(store.state.pid)
    assert found is not None and found[0] == "S"


# ---- delete


@pytest.fixture
def stopped(store: Store) -> Store:
    os.kill(store.state.pid, signal.SIGKILL)
    while (found := stat(store.state.pid)) is not None and found[0] != "Z":
        time.sleep(0.001)
    for name in ("exec.fifo", "edits", "seccomp"):
        (store.container / name).touch()
    return store


@pytest.mark.parametrize("options", [[], ["--force"], ["-f"]])
def test_delete(places: Path, stopped: Store, options: list[str]) -> None:
    log = stopped.root.parent / "log"
    done = run(places / "bare", "--root", stopped.root, "--log", log, "--log-format", "json", "delete", *options, "c")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not stopped.container.exists()
    assert not stopped.cgroup.exists()
    assert log.read_text() == ""
    assert log.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "special", ["notify", "resctrl", ".state", "created", "gpus", "hooks", "unit", "keeper", "cgroup", "memory", "running"]
)
def test_deletes_with_more_to_undo(places: Path, store: Store, special: str) -> None:
    if special != "running":
        os.kill(store.state.pid, signal.SIGKILL)
        while (found := stat(store.state.pid)) is not None and found[0] != "Z":
            time.sleep(0.001)
    if special == "hooks":
        (store.container / "config.json").write_text('{"hooks":{"poststop":[]}}')
    elif special == "unit":
        store.save(unit="x.scope")
    elif special == "keeper":
        store.save(keeper=1)
    elif special == "cgroup":
        (store.cgroup / "child").mkdir()
    elif special == "memory":
        (store.cgroup / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 0\n")
    elif special in ("created", "gpus"):
        (store.container / special).touch()
    elif special != "running":
        (store.container / special).mkdir()
    doubts(places, store, "--root", store.root, "delete", "c")


# ---- the command line


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--version"],
        ["--debug", "state", "c"],
        ["--cgroup-manager", "systemd", "state", "c"],
        ["--log-format", "xml", "state", "c"],
        ["state"],
        ["state", "c", "d"],
        ["state", "--help"],
        ["state", "../c"],
        ["state", ".c"],
        ["state", ""],
        ["state", "c/"],
        ["state", "c" * 300],
        ["state", "missing"],
        ["list"],
        ["delete", "--regex", "c"],
        ["--root"],
        ["--log"],
        ["--root=relative", "state", "c"],
        ["--root=/", "state", "c"],
        ["--log=/nowhere/at/all", "state", "c"],
        ["--log=journald:x", "state", "c"],
        ["--log=syslog:", "kill", "c", "0"],
        ["--", "state", "c"],
    ],
)
def test_other_command_lines_are_the_launchers(places: Path, store: Store, words: list[str]) -> None:
    given = words if any(w.startswith("--root") for w in words) else ["--root", str(store.root), *words]
    doubts(places, store, *given)
    whole, pure = [run(places / name, *given) for name in ("whole", "pure")]
    assert (whole.returncode, whole.stdout) == (pure.returncode, pure.stdout)


@pytest.mark.parametrize("form", ["{}/", "{}/../root", "{}/.", "/{}", "{}//x"])
def test_roots_with_something_to_resolve(places: Path, store: Store, form: str) -> None:
    doubts(places, store, "--root", form.format(store.root), "state", "c")


@pytest.mark.parametrize("fd", [0, 1, 2])
def test_closed_descriptor(places: Path, store: Store, fd: int) -> None:
    command = [str(places / "bare"), "--root", str(store.root), "kill", "c", "TERM"]
    done = subprocess.run(command, preexec_fn=lambda: os.close(fd), env={}, timeout=60)
    assert done.returncode == 1
    os.kill(store.state.pid, 0)


def test_the_hooks_name_and_completion(places: Path, store: Store, tmp_path: Path) -> None:
    link = tmp_path / "nvidia-container-runtime-hook"
    link.symlink_to(places / "whole")
    assert run(link, "-version").stdout.startswith("NVIDIA Container Runtime Hook")
    words = {"_GPURUN_COMPLETE": "bash_complete", "COMP_WORDS": "gpurun del", "COMP_CWORD": "1"}
    assert "delete" in run(places / "whole", env=words).stdout
    doubts(places, store, "--root", store.root, "state", "c", env=words)


def test_a_copy_and_a_link_find_the_launcher(places: Path, tmp_path: Path) -> None:
    shutil.copy(places / "whole", tmp_path / "copy")
    (tmp_path / "link").symlink_to("copy")
    for program in (tmp_path / "copy", tmp_path / "link"):
        done = run(program, "--version")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("gpurun version ")
    done = subprocess.run(["./copy", "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=60, env={})
    assert done.stdout.startswith("gpurun version ")


def test_it_fits_before_the_launcher_where_pages_have_64_kib() -> None:
    """As on aarch64, whose kernels may: the linker gives each segment of the program pages of its own."""
    program = compile_front(compiler(), ("-Wl,-z,max-page-size=65536",))
    assert len(program) > 64 << 10
    assert join(program, b"launcher").endswith(b"launcher")
