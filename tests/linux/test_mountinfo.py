"""The one reader of /proc/pid/mountinfo."""

from __future__ import annotations

import os

import pytest

from gpurun.errors import GpurunError
from gpurun.linux import mountinfo
from gpurun.linux.mountinfo import MountEntry, mounts, parse_mounts


def test_optional_fields_and_escapes() -> None:
    text = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "36 22 0:30 /a\\040b /mnt/x\\134y\\012z rw - tmpfs a\\040-\\040b rw\n"
        "37 22 0:31 / /proc rw shared:5 master:2 - proc proc rw\n"
    )
    assert parse_mounts(text) == [
        MountEntry("22", "/", "/", "ext4", "8:1", "1"),
        MountEntry("36", "/a b", "/mnt/x\\y\nz", "tmpfs", "0:30", "22"),
        MountEntry("37", "/", "/proc", "proc", "0:31", "22"),
    ]


def test_lines_that_are_cut_off_or_empty() -> None:
    assert parse_mounts("") == [] and parse_mounts("22 1 8:1 / / rw,relatime") == []


@pytest.mark.parametrize("line", ["22 1 8:1 - ext4 x rw", "22 1 8:1 /a\\9 / rw - ext4 x rw"])
def test_what_no_kernel_writes(line: str) -> None:
    with pytest.raises(GpurunError, match="mountinfo has a line that is not as the kernel writes it"):
        parse_mounts(line)


def test_a_table_of_which_a_part_alone_is_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mount that is looked for, such as a whole proc in sight of a container, may be in the part that was not read."""
    monkeypatch.setattr(mountinfo, "MAX_TABLE", 64)
    with pytest.raises(GpurunError, match="mountinfo is larger than"):
        mounts()


def test_our_own() -> None:
    found = mounts()
    assert found == mounts(os.getpid())
    assert any(mount.point == "/proc" and mount.fstype == "proc" for mount in found)
