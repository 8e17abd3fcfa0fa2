"""Whether the container of a lease is there: by its process, by who makes it, or by its cgroup; never guessed."""

from __future__ import annotations

import errno
import os

import pytest

from gpurun.errors import StepError
from gpurun.gpu.leases import liveness
from gpurun.gpu.leases.lease import Lease
from gpurun.gpu.leases.liveness import is_live, lives, open_process
from gpurun.gpu.leases.store import new_lease
from gpurun.linux import procfs
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

    monkeypatch.setattr(liveness, "_populated", populated)
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
