"""A cgroup of our own on this machine's real tree, and processes to put into it."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from gpurun.cgroup import manager
from gpurun.cgroup.devices import compile_filter, emulate
from gpurun.cgroup.tree import Tree, find_tree
from gpurun.errors import GpurunError
from gpurun.oci.resources import DeviceRule

Spawn = Callable[..., int]


def call_without(nodes: Iterable[int], cgroup: Path, spawn: Spawn, action: Callable[[], object]) -> None:
    """Call *action* in a process in the new *cgroup*, whose device rules deny the *nodes* (st_rdev) alone; wait for it."""
    denied = [DeviceRule(False, "c", os.major(node), os.minor(node), "rwm") for node in nodes]
    cgroup.mkdir()
    fd = os.open(cgroup, os.O_RDONLY)
    program = compile_filter(emulate((DeviceRule(True, "a", None, None, "rwm"), *denied)))
    manager.attach_devices(fd, manager.load_devices(program))
    os.close(fd)
    os.waitpid(spawn(cgroup, action), 0)
    cgroup.rmdir()


@pytest.fixture(scope="session")
def tree() -> Tree:
    """The cgroup v2 tree of this machine, if we may make cgroups in it."""
    if os.geteuid() != 0:
        pytest.skip("making cgroups needs root")
    try:
        found = find_tree()
    except GpurunError as e:
        pytest.skip(str(e))
    if not os.access(found.root, os.W_OK):
        pytest.skip(f"{found.root} is read-only")
    return found


@pytest.fixture
def base(tree: Tree) -> Iterator[Path]:
    """An empty cgroup for one test, directly below the root; the test must leave it as empty as it was."""
    path = Path(tree.root, f"gpurun-test-{os.getpid()}-{secrets.token_hex(4)}")
    path.mkdir()
    try:
        yield path
        left = sorted(str(entry.relative_to(path)) for entry in path.rglob("*") if entry.is_dir())
        assert not left, f"cgroups left behind: {left}"
    finally:
        _sweep(path)


def _sweep(path: Path) -> None:
    (path / "cgroup.kill").write_text("1")
    for directory, _, _ in os.walk(path, topdown=False):
        for _ in range(1000):
            try:
                os.rmdir(directory)
                break
            except OSError:
                events = Path(directory, "cgroup.events").read_text()
                assert "populated" in events


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """``spawn(cgroup)`` makes a process in it that does nothing (or calls *action*), and returns its pid."""
    children: list[int] = []

    def make(cgroup: Path, action: Callable[[], object] = signal.pause) -> int:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                (cgroup / "cgroup.procs").write_text("0")
                os.write(writing, b"x")
                action()
            finally:
                os._exit(1)
        children.append(pid)
        os.close(writing)
        assert os.read(reading, 1) == b"x", "the child could not enter its cgroup"
        os.close(reading)
        return pid

    yield make
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # the test has waited for it
