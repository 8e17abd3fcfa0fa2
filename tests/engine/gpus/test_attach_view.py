"""The lock on a container whose GPUs are changed, and who is named as having asked for them."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from gpurun.engine.gpus import leases
from gpurun.engine.gpus.attach_view import Busy, Running
from gpurun.engine.state import State
from gpurun.errors import NotRunning, StepError
from gpurun.oci.config import read_config
from tests.native.waiting import wait_until


def locked(path: Path, wait_s: float = 0.0) -> None:
    one = Running(str(path.parent), path.name, wait_s)
    one._lock = os.open(path, os.O_RDONLY)
    try:
        one._take_lock(str(path))
    finally:
        one.__exit__()


def test_somebody_else_is_at_work(tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(Busy, match="takes longer than 0 s"):
        locked(tmp_path)
    os.close(other)
    locked(tmp_path)


def test_what_flock_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOLCK, "")

    monkeypatch.setattr(fcntl, "flock", full)
    with pytest.raises(StepError, match="no locks available"):
        locked(tmp_path)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(errno.ENOENT, "", "/proc/7/ns/mnt"), NotRunning),
        (ProcessLookupError(errno.ESRCH, "", "/proc/7/root"), NotRunning),
        (FileNotFoundError(errno.ENOENT, "", "/proc/70/root"), FileNotFoundError),
        (PermissionError(errno.EACCES, "", "/proc/7/root"), PermissionError),
    ],
)
def test_a_container_that_ends_meanwhile(monkeypatch: pytest.MonkeyPatch, error: OSError, said: type[Exception]) -> None:
    one = Running("/root", "web")
    one.state = State("web", "/b", "/b/rootfs", "", True, pid=7)
    monkeypatch.setattr(Running, "__enter__", lambda self: self)
    with pytest.raises(said), one:
        raise error


def test_podmans_monitor_is_the_parent_of_a_container_that_runs(tmp_path: Path) -> None:
    """Its arguments have the container's name; who has called `gpu attach` knows none."""
    os.mkfifo(tmp_path / "web")
    monitor = subprocess.Popen(["conmon", "-n", "web"], executable="/bin/cat", cwd=tmp_path)
    try:
        arguments = Path(f"/proc/{monitor.pid}/cmdline")
        wait_until(lambda: arguments.read_bytes() == b"conmon\0-n\0web\0")
        config = read_config(b'{"ociVersion": "1.0.2", "process": {"args": ["x"], "cwd": "/"}, "root": {"path": "/"}}')
        known = leases.requester_of(config, "id", "/run/x", "", monitor.pid).known
        assert (known.name, known.engine) == ("web", "Podman")
        assert leases.requester_of(config, "id", "/run/x", "").known.name == ""
    finally:
        monitor.kill()
        monitor.wait()
