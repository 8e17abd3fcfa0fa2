"""Listing, freezing, killing and removing real cgroups, also ones that a container has made hard to remove."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from errno import EBUSY
from pathlib import Path

import pytest

from gpurun.cgroup import control
from gpurun.errors import StepError


def died_of(pid: int) -> int:
    status = os.waitpid(pid, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def nest(base: Path, depth: int) -> None:
    """Cgroups in cgroups, deeper than a path can name; made from inside, as a container does."""
    fd = os.open(base, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deep" * 10, dir_fd=fd)
        child = os.open("deep" * 10, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = child
    os.close(fd)


def test_processes_of_the_whole_subtree(base: Path, spawn: Callable[..., int]) -> None:
    path = base / "c"
    (path / "a" / "b").mkdir(parents=True)
    (path / "d").mkdir()
    pids = {spawn(path / "a" / "b"), spawn(path / "d"), spawn(path), spawn(path)}
    assert sorted(control.processes(str(path))) == sorted(pids)
    control.kill(str(path))
    control.remove(str(path))


def test_a_cgroup_that_is_gone(base: Path) -> None:
    gone = str(base / "gone")
    assert control.processes(gone) == ()
    assert control.is_frozen(gone) is False
    assert control.oom_kill_count(gone) == 0
    control.kill(gone)
    control.thaw(gone)
    control.remove(gone)
    with pytest.raises(StepError, match=r"cannot freeze the cgroup .*no such file or directory"):
        control.freeze(gone)


def test_processes_of_a_threaded_cgroup(base: Path, spawn: Callable[..., int]) -> None:
    path = base / "c"
    (path / "t").mkdir(parents=True)
    (path / "t" / "cgroup.type").write_text("threaded")
    pid = spawn(path)
    (path / "t" / "cgroup.threads").write_text(str(pid))
    assert control.processes(str(path)) == (pid,)
    control.kill(str(path))
    assert died_of(pid) == signal.SIGKILL
    control.remove(str(path))


def test_kill_in_a_threaded_cgroup_goes_one_by_one(base: Path, spawn: Callable[..., int]) -> None:
    path = base / "c"
    (path / "t").mkdir(parents=True)
    (path / "t" / "cgroup.type").write_text("threaded")
    pid = spawn(path)
    (path / "t" / "cgroup.threads").write_text(str(pid))
    control.kill(str(path / "t"))  # cgroup.kill is EOPNOTSUPP there
    assert died_of(pid) == signal.SIGKILL
    control.remove(str(path))


def test_kill_reaches_all(base: Path, spawn: Callable[..., int]) -> None:
    path = base / "c"
    (path / "a").mkdir(parents=True)
    pids = [spawn(path), spawn(path / "a")]
    bystander = spawn(base)
    control.kill(str(path))
    assert [died_of(pid) for pid in pids] == [signal.SIGKILL] * 2
    assert os.waitpid(bystander, os.WNOHANG) == (0, 0)
    control.remove(str(path))


def test_kill_without_cgroup_kill(base: Path, spawn: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    path = base / "c"
    (path / "a").mkdir(parents=True)
    pids = [spawn(path), spawn(path / "a")]
    real = control._write

    def write(dir_fd: int | None, name: str, value: str) -> None:
        if name == "cgroup.kill":
            raise FileNotFoundError(2, "a kernel before 5.14")
        real(dir_fd, name, value)

    monkeypatch.setattr(control, "_write", write)
    control.kill(str(path))
    assert [died_of(pid) for pid in pids] == [signal.SIGKILL] * 2
    assert (path / "cgroup.freeze").read_text() == "0\n"
    control.remove(str(path))


def test_kill_one_by_one_never_signals_pid_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """cgroup.procs shows processes of other pid namespaces as 0, and kill(0) is one's own process group."""
    monkeypatch.setattr(control, "processes", lambda path: (0, 4194999))
    monkeypatch.setattr(control, "is_frozen", lambda path: True)
    monkeypatch.setattr(control, "freeze", lambda path: None)
    monkeypatch.setattr(control, "thaw", lambda path: None)
    killed = []
    monkeypatch.setattr("gpurun.cgroup.control.posix.kill", lambda pid, number: killed.append(pid))
    control._kill_one_by_one(str(tmp_path))
    assert killed == [4194999]


def test_freeze_and_thaw(base: Path, spawn: Callable[..., int]) -> None:
    path = base / "c"
    path.mkdir()
    spawn(path)
    assert control.is_frozen(str(path)) is False
    control.freeze(str(path))
    assert control.is_frozen(str(path)) is True
    assert "frozen 1" in (path / "cgroup.events").read_text().splitlines()
    control.thaw(str(path))
    assert control.is_frozen(str(path)) is False
    control.kill(str(path))
    control.remove(str(path))


def test_a_freeze_that_does_not_come_is_taken_back(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = base / "c"
    path.mkdir()
    monkeypatch.setattr(control, "_wait_event", lambda *args: False)
    with pytest.raises(StepError, match=r"cannot freeze the cgroup .*timed out"):
        control.freeze(str(path))
    assert (path / "cgroup.freeze").read_text() == "0\n"
    path.rmdir()


def test_kill_ends_a_frozen_process(base: Path, spawn: Callable[..., int]) -> None:
    path = base / "c"
    path.mkdir()
    pid = spawn(path)
    control.freeze(str(path))
    control.kill(str(path))
    assert died_of(pid) == signal.SIGKILL
    control.remove(str(path))


def test_remove_with_subcgroups(base: Path) -> None:
    path = base / "c"
    for name in ("a/b/c", "a/d", "e", "f/g"):
        (path / name).mkdir(parents=True)
    control.remove(str(path))
    assert not path.exists()


def test_remove_deeper_than_a_path(base: Path) -> None:
    path = base / "c"
    path.mkdir()
    nest(path, 250)  # 250 names of 40 bytes: twice PATH_MAX
    assert control.processes(str(path)) == ()
    control.remove(str(path))
    assert not path.exists()


def test_remove_waits_for_the_last_process(base: Path, spawn: Callable[..., int]) -> None:
    path = base / "c"
    (path / "a").mkdir(parents=True)
    spawn(path / "a")
    control.kill(str(path))
    control.remove(str(path))  # the killed process may still be on its way out
    assert not path.exists()


def test_remove_gives_up_on_a_living_process(base: Path, spawn: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    path = base / "c"
    (path / "a").mkdir(parents=True)
    (path / "b").mkdir()
    spawn(path / "a")
    monkeypatch.setattr(control, "REMOVE_TIMEOUT", 0.05)
    with pytest.raises(StepError, match=r"cannot remove the cgroup .*device or resource busy") as caught:
        control.remove(str(path))
    assert caught.value.errno == EBUSY
    assert not (path / "b").exists()
    control.kill(str(path))
    monkeypatch.undo()
    control.remove(str(path))


@pytest.mark.parametrize("frozen", [False, True])
def test_remove_ends_who_comes_meanwhile(
    base: Path, spawn: Callable[..., int], monkeypatch: pytest.MonkeyPatch, frozen: bool
) -> None:
    """An exec that begins after delete has killed all processes, in a cgroup that a pause has frozen since."""
    path = base / "c"
    path.mkdir()
    late: list[int] = []
    wait = vars(control)["_wait_event"]

    def comes(cgroup: str, line: bytes, seconds: float) -> object:
        if line == b"populated 0" and not late:
            late.append(spawn(path))
            (path / "cgroup.freeze").write_text(str(int(frozen)))
        return wait(cgroup, line, seconds)

    spawn(path)
    monkeypatch.setattr(control, "_wait_event", comes)
    control.remove(str(path), end=True)
    assert late and not path.exists()


def test_remove_follows_no_link(tmp_path: Path) -> None:
    """Plain directories stand in for cgroups; rmdir of one that is not empty says ENOTEMPTY, which is not waited for."""
    (tmp_path / "outside" / "kept").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "link").symlink_to(tmp_path / "outside")
    control._remove_children(str(tmp_path / "c"))
    assert (tmp_path / "outside" / "kept").exists()


def test_the_root_of_the_tree_is_nobodys_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory stands in for it: like the root, it has neither cgroup.kill nor cgroup.type."""
    (tmp_path / "system.slice").mkdir()
    (tmp_path / "cgroup.procs").write_text("4194999\n")
    killed: list[int] = []
    monkeypatch.setattr("gpurun.cgroup.control.posix.kill", lambda pid, number: killed.append(pid))
    with pytest.raises(StepError, match="cannot kill the processes"):
        control.kill(str(tmp_path))
    assert killed == []

    real = os.rmdir

    def rmdir(path: str, *, dir_fd: int | None = None) -> None:
        if path == str(tmp_path):
            raise OSError(EBUSY, "busy")
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr("gpurun.cgroup.control.posix.rmdir", rmdir)
    with pytest.raises(StepError, match="cannot remove the cgroup"):
        control.remove(str(tmp_path))
    assert (tmp_path / "system.slice").exists()


def test_oom_kills_are_counted(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert control.oom_kill_count(str(tmp_path)) == 2


def test_no_c_library() -> None:
    """state, kill and delete need this module, and must not pay for _ctypes."""
    code = "import gpurun.cgroup.control; print([name for name in ('_ctypes', 'os', 'select') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
