"""The kept plan of exec and its enemies: another user, a full disk, two at once, a killed command, a pid used again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from struct import pack

import pytest

from gpurun.builder.front import compiler
from gpurun.engine.caller.kept_plan import FILES, NAME, NUMBERS, TEXTS
from gpurun.engine.state import load, save
from gpurun.record import replace
from tests.conftest import MakeBundle
from tests.launcher.fast import FOREVER, Fast
from tests.launcher.front import FALLS_BACK, Store, falls_back, run
from tests.native.runtime import Container, Result, Runtime

pytestmark = [pytest.mark.native, pytest.mark.skipif(not compiler(), reason="there is no C compiler here")]


def _stamp(path: Path) -> bytes:
    try:
        found = path.stat()
    except FileNotFoundError:
        return bytes(32)
    return pack("4Q", found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _stamp_again(fast: Fast, container: Container) -> None:
    """Have the plan say that it was made from the files as they are now."""
    plan = fast.plan(container)
    data, at = bytearray(plan.read_bytes()), 8 * (len(NUMBERS) + len(TEXTS))
    stamps = b"".join([_stamp(fast.program), *[_stamp(plan.with_name(name)) for name in FILES]])
    data[at : at + len(stamps)] = stamps
    plan.write_bytes(data)


@pytest.mark.parametrize("command", [["state"], ["kill"], ["pause"], ["resume"], ["delete", "--force"], ["exec"], ["start"]])
def test_a_link_of_another_user(places: Path, store: Store, command: list[str]) -> None:
    """It leads from that user's state root to a container of ours, which no command on that root may meet."""
    if os.geteuid() != 0:
        pytest.skip("needs two users")
    link = store.root / "link"
    link.symlink_to(store.container)
    os.chown(link, 1000, 1000, follow_symlinks=False)
    words = ["--root", str(store.root), *command, "link", *(["true"] if command == ["exec"] else [])]
    falls_back(places, store, *words)
    said = run(places / "whole", *words)
    assert said.returncode != 0 and "belongs to user 1000" in said.stderr, said
    assert not store.has_ended() and (store.container / "state").exists()


def _with_no_umask() -> None:
    os.umask(0)


def test_who_may_write_it(fast: Fast, bundle: MakeBundle) -> None:
    """Nobody but its owner, whatever the umask of who called: it says with which capabilities a process runs."""
    container = fast.runtime.start(bundle().sh(FOREVER))
    assert fast.by(fast.whole, container.id, "true", preexec=_with_no_umask).rc == 0
    found = fast.plan(container).stat()
    assert (found.st_mode & 0o7777, found.st_uid) == (0o600, os.geteuid())
    assert fast.plan(container).parent.stat().st_mode & 0o022 == 0


def test_a_plan_of_another_program(fast: Fast, container: Container) -> None:
    """One of an older or a newer gpurun: its numbers may mean something else."""
    assert fast(container.id, "true") == Result(0, "", "")
    os.utime(fast.program)
    fast.falls_back(container.id, "true")
    _stamp_again(fast, container)
    assert fast(container.id, "true") == Result(0, "", "")


@pytest.mark.parametrize("more", ["number", "text"])
def test_a_plan_of_another_form(fast: Fast, container: Container, more: str) -> None:
    plan = fast.plan(container)
    data, head = plan.read_bytes(), 8 * (len(NUMBERS) + len(TEXTS))
    if more == "number":
        plan.write_bytes(data[: 8 * len(NUMBERS)] + bytes(8) + data[8 * len(NUMBERS) :])
    else:
        plan.write_bytes(data[:head] + pack("Q", 1) + data[head:] + b"x" + bytes(7))
    fast.falls_back(container.id, "true")


def test_a_pid_that_is_another_process(fast: Fast, container: Container) -> None:
    """The first process of the container has ended, and one that began later has its number."""
    root = str(fast.runtime.root)
    state = load(root, container.id)
    try:
        save(root, replace(state, start_time=state.start_time - 1))
        _stamp_again(fast, container)
        fast.falls_back(container.id, "true")
        assert "cannot exec in a stopped container" in fast.by(fast.whole, container.id, "true").err
    finally:
        save(root, state)
    _stamp_again(fast, container)
    assert fast(container.id, "true") == Result(0, "", "")


def test_a_container_of_a_users_systemd(fast: Fast, container: Container) -> None:
    """The launcher knows how its manager is reached."""
    root = str(fast.runtime.root)
    state = load(root, container.id)
    save(root, replace(state, manager="bus:/run/user/0/bus"))
    try:
        _stamp_again(fast, container)
        fast.falls_back(container.id, "true")
    finally:
        save(root, state)
    _stamp_again(fast, container)
    assert fast(container.id, "true") == Result(0, "", "")


def test_after_an_update(fast: Fast, container: Container) -> None:
    """What changes of a container by update is its cgroup, in which the process is born."""
    (container.files / "resources.json").write_text("{}")
    done = fast.runtime("update", "--resources", str(container.files / "resources.json"), container.id)
    assert done.rc == 0, done
    _stamp_again(fast, container)
    cgroup = fast(container.id, "cat", "/proc/self/cgroup")
    assert cgroup.out == fast.by(fast.pure, container.id, "cat", "/proc/self/cgroup").out and cgroup.rc == 0


def _in_bed(runtime: Runtime, *argv: str) -> str:
    done = subprocess.run(argv, check=True, preexec_fn=runtime.bed.enter(), capture_output=True, text=True)
    return done.stdout


def test_a_full_disk(fast: Fast, bundle: MakeBundle) -> None:
    """No plan is kept then, nor a part of one, and exec knows no difference; the next one that has room keeps it."""
    root = fast.runtime.root
    root.mkdir()
    _in_bed(fast.runtime, "mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(root))
    try:
        container = fast.runtime.start(bundle().sh(FOREVER))
        subprocess.run(["dd", "if=/dev/zero", f"of={root}/full"], preexec_fn=fast.runtime.bed.enter(), capture_output=True)
        before = _in_bed(fast.runtime, "ls", "-A", str(root / container.id))
        assert fast.by(fast.whole, container.id, "echo", "here") == Result(0, "here\n", "")
        assert _in_bed(fast.runtime, "ls", "-A", str(root / container.id)) == before and NAME not in before
        _in_bed(fast.runtime, "rm", f"{root}/full")
        assert fast.by(fast.whole, container.id, "echo", "here") == Result(0, "here\n", "")
        assert set(_in_bed(fast.runtime, "ls", "-A", str(root / container.id)).split()) == {*before.split(), NAME}
        assert container.delete("--force").rc == 0
    finally:
        _in_bed(fast.runtime, "umount", str(root))


def test_many_at_once(fast: Fast, bundle: MakeBundle) -> None:
    """Each writes a plan beside the others; one whole plan is there in the end, and nothing else."""
    container = fast.runtime.start(bundle().sh(FOREVER))
    before = {path.name for path in fast.plan(container).parent.iterdir()}
    files = [fast.runtime.new_files() for _ in range(6)]
    racing = [fast.runtime.popen("exec", container.id, "echo", str(n), files=f) for n, f in enumerate(files)]
    assert [process.wait(120) for process in racing] == [0] * 6
    assert [(f / "out").read_text() for f in files] == [f"{n}\n" for n in range(6)]
    assert [(f / "err").read_text() for f in files] == [""] * 6
    assert {path.name for path in fast.plan(container).parent.iterdir()} == {*before, NAME}
    _stamp_again(fast, container)
    assert fast(container.id, "true") == Result(0, "", "")


def test_what_a_killed_exec_has_left(fast: Fast, container: Container) -> None:
    """A file beside the plan, not yet renamed: nobody reads it, and it goes with the container."""
    left = fast.plan(container).with_name(f".{NAME}.0123456789abcdef.new")
    left.write_bytes(fast.plan(container).read_bytes()[:100])
    assert fast(container.id, "true") == Result(0, "", "")
    deleted = fast.runtime("delete", "--force", container.id)
    assert deleted == Result(0, "", "") and not left.parent.exists()


def test_an_init_that_ends_under_it(fast: Fast, container: Container, tmp_path: Path) -> None:
    """Between the look at the container and the process: as if none had been there."""
    tracer = ["strace", "-D", "-f", "-qq", "-o", str(tmp_path / "log"), "-e", "trace=setns"]
    tracer += ["-e", "inject=setns:error=ESRCH"]
    done = fast.by(fast.whole, container.id, "true", tracer=tracer)
    assert done.rc == 255 and "cannot exec in a stopped container" in done.err and FALLS_BACK not in done.err
