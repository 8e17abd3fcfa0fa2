"""Commands that are killed, files that are damaged, places that are full: ``delete --force`` must be able to clear up."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.forms import rounds
from tests.native.bed import remove_cgroup
from tests.native.runtime import Runtime
from tests.native.waiting import wait_until

pytestmark = pytest.mark.native

FOREVER = "echo up; while :; do sleep 0.01; done"


@pytest.fixture
def hang(runtime: Runtime, place: Path, busybox: Path) -> dict[str, object]:
    """A hook that stops ``create`` in the middle: it says so in a file and waits."""
    script = f"echo $$ >{runtime.directory}/hook; exec sleep 60"
    return {"path": str(busybox), "args": ["busybox", "sh", "-c", script]}


def kill_and_clear(runtime: Runtime, process: subprocess.Popen[bytes], container_id: str) -> None:
    process.kill()
    process.wait()
    cleared = runtime("delete", "--force", container_id)
    assert cleared.rc == 0, cleared.text
    gone = runtime("state", container_id)
    assert gone.rc == 1
    assert "does not exist" in gone.text


@pytest.mark.not_on("runc 1", reason="leaves cgroups and processes behind")
def test_create_killed_at_any_moment(runtime: Runtime, bundle: MakeBundle) -> None:
    """What is left of each is looked for at the end of the test, by the fixture."""
    moments = random.Random(20210531)
    b = bundle().sh(FOREVER)
    for _ in range(rounds(40)):
        container_id = runtime.new_id()
        b.linux.pop("cgroupsPath", None)
        runtime.prepare(b, container_id)
        process = runtime.popen("create", "--bundle", str(b.directory), container_id, files=runtime.new_files())
        time.sleep(moments.uniform(0, 0.06))
        kill_and_clear(runtime, process, container_id)


@pytest.mark.not_on("runc 1", reason="leaves cgroups and processes behind")
@pytest.mark.parametrize("kind", ["prestart", "createRuntime", "createContainer"])
def test_create_killed_while_a_hook_runs(runtime: Runtime, bundle: MakeBundle, hang: dict[str, object], kind: str) -> None:
    b = bundle()
    b.config["hooks"] = {kind: [hang]}
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    process = runtime.popen("create", "--bundle", str(b.directory), container_id, files=runtime.new_files())
    running = runtime.directory / "hook"
    wait_until(
        lambda: running.exists() and running.read_text(),
        meanwhile=lambda: None if process.poll() is None else "create has ended",
    )
    kill_and_clear(runtime, process, container_id)
    if kind != "createContainer":  # a hook of the host's namespaces is no part of the container
        hook = int(running.read_text())
        os.kill(hook, signal.SIGKILL)
        os.waitpid(hook, 0)


def test_the_first_process_dies_during_create(runtime: Runtime, bundle: MakeBundle, busybox: Path) -> None:
    # The init waits until the hook has ended, so it is always seen.
    told = runtime.directory / "pid"
    script = f"sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p' >{told} && kill -9 $(cat {told})"
    b = bundle()
    b.config["hooks"] = {"createRuntime": [{"path": str(busybox), "args": ["busybox", "sh", "-c", script]}]}
    text = runtime.refused(b)
    assert int(told.read_text()) > 1, "the hook has killed nobody"
    assert "hook" not in text and "Traceback" not in text and text.count("\n") == 1, "it is the process that ended, no hook"


def test_run_killed(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh(FOREVER)
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    files = runtime.new_files()
    process = runtime.popen("run", "--bundle", str(b.directory), container_id, files=files)
    wait_until(
        lambda: "up" in (files / "out").read_text(),
        meanwhile=lambda: None if process.poll() is None else "run has ended",
    )
    kill_and_clear(runtime, process, container_id)


@pytest.mark.gpurun_only
@pytest.mark.parametrize("damage", [b"", b"{", b"\0\0\0\0", b"[]", b'{"pid": "x"}'])
def test_damaged_state(runtime: Runtime, bundle: MakeBundle, damage: bytes) -> None:
    """One sentence, and ``delete --force`` still removes it; the process and the cgroup are no longer known to anybody."""
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    for path in (runtime.root / container.id).iterdir():
        if path.is_file() and not path.is_fifo():
            path.write_bytes(damage)
    for command in ("state", "kill", "start"):
        result = runtime(command, container.id)
        assert result.rc == 1, command
        assert "Traceback" not in result.text
        assert result.text.count("\n") == 1
    assert runtime("list").rc == 0, "one bad container does not hide the others"
    done = container.delete("--force")
    assert done.rc == 1 and "is removed, but not all of it" in done.text
    assert not (runtime.root / container.id).exists()
    remove_cgroup(runtime.bed.cgroup(f"{runtime.bed.subtree}/{container.id}"))
    container.wait()


@pytest.mark.gpurun_only
def test_state_directory_that_is_half_made(runtime: Runtime) -> None:
    (runtime.root / "half").mkdir(parents=True)
    assert "does not exist" in runtime("state", "half").text
    assert runtime("delete", "--force", "half").rc == 0
    assert not (runtime.root / "half").exists()


def test_root_that_is_a_file(runtime: Runtime, bundle: MakeBundle) -> None:
    runtime.root.write_text("")
    b = bundle()
    b.write()
    result = runtime("create", "--bundle", str(b.directory), "x1")
    assert result.rc == 1
    assert "not a directory" in result.text
    assert "Traceback" not in result.text
    runtime.root.unlink()


@pytest.mark.gpurun_only
@pytest.mark.parametrize(("options", "what"), [("size=4k,nr_inodes=3", ""), ("nr_inodes=4", "make the FIFO of start /")])
def test_full_disk(runtime: Runtime, bundle: MakeBundle, options: str, what: str) -> None:
    """There is no room for config.json, or after it no inode for the FIFO of start."""
    runtime.root.mkdir()

    def in_bed(*argv: str) -> None:
        subprocess.run(argv, check=True, preexec_fn=runtime.bed.enter())

    in_bed("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(runtime.root))
    try:
        b = bundle()
        b.config["annotations"] = {"long": "x" * 50000}
        container = runtime.create(b, check=False)
        assert container.result.rc == 1
        assert what in container.err
        assert "no space left on device" in container.err
        assert container.err.count("\n") == 1
    finally:
        in_bed("umount", str(runtime.root))


@pytest.mark.gpurun_only
def test_concurrent_creates_of_one_id(runtime: Runtime, bundle: MakeBundle) -> None:
    """One wins, the others say that the id is taken, and the winner is whole."""
    b = bundle()
    container_id = runtime.new_id()
    runtime.prepare(b, container_id)
    files = [runtime.new_files() for _ in range(4)]
    racing = [runtime.popen("create", "--bundle", str(b.directory), container_id, files=f) for f in files]
    codes = [process.wait(30) for process in racing]
    assert sorted(codes) == [0, 1, 1, 1]
    for code, f in zip(codes, files, strict=True):
        if code:
            assert "container with given ID already exists" in (f / "err").read_text()
    assert '"created"' in runtime("state", container_id).out
