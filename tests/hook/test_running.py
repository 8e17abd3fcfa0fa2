"""Changing the devices of a container that runs or is being restored: never in another tree than the container's own."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.cdi.edits import ContainerEdits, EditMount, ProcTree
from gpurun.errors import GpurunError, StepError
from gpurun.hook import running, running_removal
from gpurun.hook.running import DeviceChange, change, not_there
from gpurun.ns.path import open_in_root

pytestmark = [pytest.mark.native, pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace of its own needs root")]


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """A process in a mount namespace of its own with the host's tree: what CRIU shows before it has changed its root."""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "mount -t tmpfs t /mnt; echo ready; read -r _"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process.pid
        process.communicate("\n", timeout=10)


def mount_points(pid: int) -> set[str]:
    with open(f"/proc/{pid}/mountinfo") as f:
        return {line.split()[4] for line in f}


def test_a_restored_container_whose_root_is_another(elsewhere: int) -> None:
    here = os.stat("/")
    with pytest.raises(GpurunError, match="is not its rootfs"):
        change(elsewhere, DeviceChange(restoring=(here.st_dev, here.st_ino + 1), mounts=("/mnt",)))
    assert "/mnt" in mount_points(elsewhere)
    change(elsewhere, DeviceChange(restoring=(here.st_dev, here.st_ino), mounts=("/mnt",)))
    assert "/mnt" not in mount_points(elsewhere)


def test_a_process_that_shares_the_hosts_mounts() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        with pytest.raises(GpurunError, match="no mount namespace of its own"):
            change(process.pid, DeviceChange(mounts=("/mnt",)))
        process.kill()


def refusing(monkeypatch: pytest.MonkeyPatch, path: str, name: str) -> None:
    """Opening *path* of the container fails with the error *name*."""
    real, number = open_in_root, getattr(errno, name)

    def opening(root_fd: int, asked: str, flags: int = os.O_PATH) -> int:
        if asked == path:
            raise OSError(number, os.strerror(number), path)
        return real(root_fd, asked, flags)

    monkeypatch.setattr(running, "open_in_root", opening)
    monkeypatch.setattr(running_removal, "open_in_root", opening)


@pytest.mark.parametrize("name", ["ENOENT", "ENOTDIR", "EACCES", "EMFILE", "EIO"])
def test_a_directory_of_old_nodes_that_cannot_be_opened(elsewhere: int, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The nodes of the GPU that it had would stay in the restored container, without a word."""
    here = os.stat("/")
    refusing(monkeypatch, "/mnt/dri", name)
    wanted = DeviceChange(restoring=(here.st_dev, here.st_ino), names=("/mnt/dri/card0",))
    if name in ("ENOENT", "ENOTDIR"):
        change(elsewhere, wanted)
        return
    reason = os.strerror(getattr(errno, name)).lower()
    with pytest.raises(GpurunError, match=rf"^change the container's devices: /mnt/dri: {reason}"):
        change(elsewhere, wanted)


@pytest.mark.parametrize("name", ["ENOENT", "ENOTDIR", "EACCES", "EMFILE", "EIO"])
def test_an_entry_of_proc_that_cannot_be_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    path = "/proc/driver/nvidia/gpus/0000:01:00.0"
    bind = EditMount(str(tmp_path), path, (), "dir", "a GPU")
    edits = ContainerEdits(proc_trees=(ProcTree("/proc/driver/nvidia", (), (bind,)),))
    refusing(monkeypatch, path, name)
    if name in ("ENOENT", "ENOTDIR"):
        assert not_there(os.getpid(), edits) == ((), ("gpus/0000:01:00.0",))
        return
    with pytest.raises(StepError, match=rf"^look for the container's {path}: "):
        not_there(os.getpid(), edits)
