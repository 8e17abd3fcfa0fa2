"""Changing the devices of a container that runs or is being restored: never in another tree than the container's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from gpurun.errors import GpurunError
from gpurun.hook.running import DeviceChange, change

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
