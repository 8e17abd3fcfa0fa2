"""Whether the container of a lease is there: by its process, by who makes it, or by its cgroup; never guessed."""

from __future__ import annotations

import errno
import os
import posix
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpurun.errors import StepError
from gpurun.gpu.leases import liveness
from gpurun.gpu.leases.lease import Lease
from gpurun.gpu.leases.liveness import is_live, lives, open_process
from gpurun.gpu.leases.store import new_lease
from gpurun.linux import procfs
from gpurun.linux.fs import CGROUP2_SUPER_MAGIC
from gpurun.record import replace

NO_PID = 1 << 22  # pid_max is never more


@pytest.fixture
def lease() -> Lease:
    """Of a container that this process makes."""
    return new_lease("web", "/root", ())


def fails(number: int) -> object:
    def call(*_: object) -> None:
        raise OSError(number, "")

    return call


def test_while_it_is_made_its_maker_counts(lease: Lease) -> None:
    assert is_live(lease)
    assert not is_live(replace(lease, maker_start=lease.maker_start + 1))
    assert not is_live(replace(lease, boot="another"))


def test_pids_of_another_namespace_say_nothing(lease: Lease) -> None:
    assert is_live(replace(lease, maker=NO_PID, pid_namespace=1))


@pytest.mark.parametrize(
    ("cgroup", "foreign", "counts"),
    [
        ("/sys/fs/cgroup/web", False, True),
        ("/elsewhere", False, True),
        ("/sys/fs/cgroup/web", True, True),
        ("/elsewhere", True, False),
        ("/sys/fs/cgroup/../../tmp", True, False),
    ],
)
def test_when_its_init_has_ended_the_cgroup_counts(
    lease: Lease, monkeypatch: pytest.MonkeyPatch, cgroup: str, foreign: bool, counts: bool
) -> None:
    """That of a lease which another user has written only where users cannot make files."""
    looked = []

    def populated(path: str, inode: int) -> bool:
        looked.append((path, inode))
        return True

    monkeypatch.setattr(liveness, "_is_populated", populated)
    ended = replace(lease, pid=NO_PID, start_time=1, cgroup=cgroup, cgroup_inode=7)
    assert is_live(ended, foreign) is counts and looked == ([(cgroup, 7)] if counts else [])


def test_a_process_that_has_started_at_another_time_is_another() -> None:
    found = procfs.stat(os.getpid())
    assert found is not None
    before = os.listdir("/proc/self/fd")
    assert lives(os.getpid(), found[1]) and not lives(os.getpid(), found[1] + 1) and not lives(NO_PID, 1)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("call", ["posix.pidfd_open", "procfs.stat"])
def test_what_cannot_be_found_out_is_an_error(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(f"gpurun.gpu.leases.liveness.{call}", fails(errno.EMFILE))
    with pytest.raises(StepError, match=rf"process {os.getpid()}: too many open files"):
        open_process(os.getpid(), 1)
    assert os.listdir("/proc/self/fd") == before


def test_one_that_ends_between_the_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs, "stat", lambda _: None)
    assert open_process(os.getpid(), 1) == -1


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that looks like a cgroup v2 with processes in it."""
    made = tmp_path / "web"
    made.mkdir()
    (made / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    monkeypatch.setattr(liveness, "fstatfs_type", lambda _: CGROUP2_SUPER_MAGIC)
    return made


def populated(cgroup: Path) -> bool:
    return vars(liveness)["_is_populated"](str(cgroup), cgroup.stat().st_ino) is True


def test_a_cgroup_with_processes(cgroup: Path) -> None:
    assert populated(cgroup)
    (cgroup / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert not populated(cgroup)


def test_a_later_cgroup_of_the_same_name(cgroup: Path) -> None:
    inode = cgroup.stat().st_ino
    assert liveness.is_cgroup(str(cgroup), inode) and not liveness.is_cgroup(str(cgroup), inode + 1)
    assert not vars(liveness)["_is_populated"](str(cgroup), inode + 1)
    assert liveness.cgroup_inode(str(cgroup)) == inode and liveness.cgroup_inode(f"{cgroup}/none") == 0


def test_a_file_that_is_not_the_kernels_is_not_read(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's directory: a FIFO would block, and nothing that stands in it is believed."""
    (cgroup / "cgroup.events").unlink()
    os.mkfifo(cgroup / "cgroup.events")
    assert not populated(cgroup)
    (cgroup / "cgroup.events").unlink()
    (cgroup / "cgroup.events").write_text("populated 1\n")
    monkeypatch.undo()
    assert not populated(cgroup) and not liveness.is_cgroup(str(cgroup), cgroup.stat().st_ino)


@pytest.mark.parametrize("path", ["", "a\0b", "/none"])
def test_a_cgroup_that_is_none(path: str) -> None:
    assert not vars(liveness)["_is_populated"](path, 1) and not liveness.is_cgroup(path, 1)


def test_a_link_to_a_cgroup_is_none(cgroup: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(cgroup)
    assert not liveness.is_cgroup(str(link), cgroup.stat().st_ino)


def test_a_cgroup_that_cannot_be_seen_is_an_error(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have processes: a lease is not taken away for want of descriptors."""
    monkeypatch.setattr(liveness, "posix", SimpleNamespace(**{**vars(posix), "open": fails(errno.EMFILE)}))
    with pytest.raises(StepError, match=f"processes in the cgroup {cgroup}: too many open files"):
        populated(cgroup)
    monkeypatch.setattr(liveness, "posix", SimpleNamespace(**{**vars(posix), "open": fails(errno.ENODEV)}))
    assert not populated(cgroup), "it is being removed"
