"""CPUs that the cgroups above leave to one: plain files stand for the kernel's (the real ones: tests/systemd)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.cgroup import exclusive
from gpurun.cgroup.resources import CgroupWrite
from gpurun.errors import GpurunError

ASKED = CgroupWrite("cpuset.cpus.exclusive", "2-3", "annotations.dev.gpurun.cpu.exclusive")
FILE = "cpuset.cpus.exclusive"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    for directory, text in (("a", "0,5\n"), ("a/b", "\n")):
        (root / directory / FILE).write_text(text)
    return root


def lists(tree: Path) -> list[str]:
    return [(tree / name / FILE).read_text().strip() for name in ("a", "a/b")]


def test_which_cgroups() -> None:
    assert exclusive.above("/r", "/r/a/b/c") == ("/r/a", "/r/a/b")
    assert exclusive.above("/r/", "/r/c") == ()


def test_lent_and_given_back(tree: Path, tmp_path: Path) -> None:
    """What others have in the lists stays there."""
    record = str(tmp_path / "record")
    exclusive.lend(ASKED, str(tree), str(tree / "a/b/c"), record)
    assert lists(tree) == ["0,2,3,5", "2,3"]
    exclusive.give_back(record)
    assert lists(tree) == ["0,5", ""]
    exclusive.give_back(str(tmp_path / "none"))


def test_directly_below_the_root_nobody_is_asked(tree: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    exclusive.lend(ASKED, str(tree), str(tree / "c"), str(record))
    assert not record.exists() and lists(tree) == ["0,5", ""]


def test_an_older_kernel_is_told_of(tree: Path, tmp_path: Path) -> None:
    (tree / "a/b" / FILE).unlink()
    record = str(tmp_path / "record")
    with pytest.raises(GpurunError, match=r'annotations.dev.gpurun.cpu.exclusive: .*Linux 6.7.*cgroupsPath to "/NAME"'):
        exclusive.lend(ASKED, str(tree), str(tree / "a/b/c"), record)
    exclusive.give_back(record)
    assert (tree / "a" / FILE).read_text().strip() == "0,5"


def test_cgroups_that_are_gone_have_nothing_to_give_back(tree: Path, tmp_path: Path) -> None:
    record = tmp_path / "record"
    (tree / "a" / FILE).write_text("0,2-3,5")
    record.write_text(f"2-3\n{tree}/a\n{tree}/gone")
    exclusive.give_back(str(record))
    assert lists(tree) == ["0,5", ""]


def test_who_asks() -> None:
    partition = CgroupWrite("cpuset.cpus.partition", "root", "w")
    assert exclusive.find_cpus_write((ASKED, partition)) == ASKED
    assert exclusive.find_cpus_write((ASKED,)) is None
    assert exclusive.find_cpus_write((ASKED, CgroupWrite("cpuset.cpus.partition", "member", "w"))) is None
