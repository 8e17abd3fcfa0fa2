"""Children that are born in another cgroup, or moved there when the kernel kills them at birth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.cgroup.manager import add_process
from gpurun.ns.birth import clone_into
from tests.native.bed import Bed, remove_cgroup

pytestmark = pytest.mark.native


@pytest.mark.parametrize("killed", [(), ("parent",), ("child",), ("parent", "child"), ("parent", "parent", "child")])
def test_where_it_ends_up(bed: Bed, killed: tuple[str, ...]) -> None:
    places = {name: bed.cgroup(f"{bed.subtree}/{name}") for name in ("parent", "child")}
    for path in places.values():
        path.mkdir()
    for name in killed:
        (places[name] / "cgroup.kill").write_text("1")
    read, write = os.pipe()
    try:
        parent = os.fork()
        if parent == 0:
            try:
                os._exit(_as_parent(places["parent"], places["child"], write))
            finally:
                os._exit(100)
        os.close(write)
        moves = os.waitstatus_to_exitcode(os.waitpid(parent, 0)[1])
        with open(read) as said:
            assert said.read() == f"0::{bed.subtree}/child"
        # A kernel that is not of those that kill makes no move; one that is makes it where the counts differ.
        assert moves == 0 or (moves == 1 and killed.count("parent") != killed.count("child"))
    finally:
        for path in places.values():
            remove_cgroup(path)


def _as_parent(own: Path, other: Path, write: int) -> int:
    """In a process of its own: returns how often the child had to be moved."""
    (own / "cgroup.procs").write_text("0")
    fd = os.open(other, os.O_RDONLY | os.O_DIRECTORY)
    moved = []

    def move(pid: int, dead: int) -> None:
        assert os.waitstatus_to_exitcode(os.waitpid(dead, 0)[1]) == -9
        add_process(fd, pid)
        moved.append(pid)

    pid, _ = clone_into(0, fd, move)
    if pid == 0:
        os.write(write, next(line for line in Path("/proc/self/cgroup").read_text().split("\n") if "0::" in line).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return len(moved)


def test_a_move_that_fails(bed: Bed) -> None:
    """It is raised, and the child that was to be moved ends."""
    path = bed.cgroup(f"{bed.subtree}/failing")
    path.mkdir()
    (path / "cgroup.kill").write_text("1")
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    children: list[int] = []

    def move(pid: int, dead: int) -> None:
        children.extend((pid, dead))
        raise OSError

    try:
        try:
            pid, _ = clone_into(0, fd, move)
            if pid == 0:
                os._exit(7)
            os.waitpid(pid, 0)
            pytest.skip("this kernel lets it be born there")
        except OSError:
            pass
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [1, -9]
    finally:
        os.close(fd)
        remove_cgroup(path)


def test_without_a_cgroup_it_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpurun.ns.birth.clone3", lambda *args: (args, 0))
    assert clone_into(5, -1, lambda pid, dead: None) == ((5,), 0)  # type: ignore[comparison-overlap]
