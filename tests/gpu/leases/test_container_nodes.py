"""What is in the /dev of a container: seen whole, or an error, but never too little."""

from __future__ import annotations

import errno
import os
import posix
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpurun.errors import GpurunError, StepError
from gpurun.gpu.leases import container_nodes
from gpurun.ns.path import open_in_root
from tests.native.descriptors import descriptors_left

NULL = (1, 3)


def nodes() -> frozenset[tuple[int, int]]:
    """Of this process, whose /dev is as good as any."""
    return container_nodes.nodes_of(os.getpid(), computes=True)


def with_listings(monkeypatch: pytest.MonkeyPatch, *listings: list[str]) -> list[str]:
    """The names of /dev are these, one after the other, the last for good; what was asked for is returned."""
    rest = list(listings)
    asked: list[str] = []

    def listdir(fd: int) -> list[str]:
        asked.append(posix.readlink(f"/proc/self/fd/{fd}"))
        return rest.pop(0) if len(rest) > 1 else rest[0]

    monkeypatch.setattr(container_nodes, "posix", SimpleNamespace(**{**vars(posix), "listdir": listdir}))
    return asked


def test_a_name_that_has_gone_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with_listings(monkeypatch, ["gone", "null"])
    assert NULL in nodes()


def test_a_node_that_got_another_name_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = with_listings(monkeypatch, ["had-this-name"], ["null"])
    assert NULL in nodes() and asked[:2] == ["/dev", "/dev"]


def test_a_directory_that_is_never_still(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = with_listings(monkeypatch, ["gone"])
    assert nodes() == frozenset() and 1 < asked.count("/dev") < 20


@pytest.fixture
def full() -> Iterator[None]:
    """No descriptor is left."""
    with descriptors_left(0):
        yield


def test_without_descriptors_nobody_is_said_to_have_no_gpu(full: None) -> None:
    with pytest.raises(GpurunError, match=r"see which GPUs the process has in its /dev.*too many open files"):
        nodes()


@pytest.mark.parametrize("call", ["open", "listdir", "stat", "fstat"])
def test_an_error_is_no_empty_directory(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(container_nodes, "posix", SimpleNamespace(**{**vars(posix), call: fails}))
    with pytest.raises(GpurunError, match="input/output error"):
        nodes()


def test_a_process_that_has_ended_has_nothing() -> None:
    assert container_nodes.nodes_of(1 << 22) == frozenset()


def test_the_hosts_own_dev_is_none() -> None:
    assert container_nodes.nodes_of(os.getpid(), os.stat("/dev").st_dev, computes=True) == frozenset()


def test_who_cannot_compute_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with_listings(monkeypatch, ["null"])
    assert container_nodes.nodes_of(os.getpid()) == frozenset()


def test_the_names_of_the_driver_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """For lists that people read: every container has a /dev/null."""
    with_listings(monkeypatch, ["null", "zero"])
    assert container_nodes.nodes_of(os.getpid(), computes=True, by_name=True) == frozenset()
    monkeypatch.setattr(container_nodes, "_PREFIXES", (("/dev", "nu"), ("/dev/nvidia-caps", "nvidia-cap")))
    assert container_nodes.nodes_of(os.getpid(), computes=True, by_name=True) == {NULL}


@pytest.fixture
def root_fd(tmp_path: Path) -> Iterator[int]:
    """A rootfs with a /dev of its own, in which is what may stand for a GPU: a link."""
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/nvidia0").symlink_to("here")
    fd = os.open(tmp_path, os.O_PATH)
    yield fd
    os.close(fd)


NO_DIRECTORY = ("ENOENT", "ENOTDIR", "ELOOP")
OTHERS = ("EACCES", "EPERM", "EMFILE", "ENFILE", "EIO", "ENOMEM")


@pytest.mark.parametrize("name", NO_DIRECTORY + OTHERS)
def test_a_directory_of_nodes_that_cannot_be_opened(root_fd: int, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A checkpoint that does not know of a node would leave the old GPU in the restored container."""
    real, number = open_in_root, getattr(errno, name)

    def opening(root_fd: int, path: str, flags: int) -> int:
        if path == "/dev/dri":
            raise OSError(number, os.strerror(number), path)
        return real(root_fd, path, flags)

    monkeypatch.setattr(container_nodes, "open_in_root", opening)
    if name in NO_DIRECTORY:
        assert container_nodes.node_paths(root_fd) == ("/dev/nvidia0",)
    else:
        with pytest.raises(StepError, match=rf"^look for GPUs in the container's /dev/dri: {os.strerror(number).lower()}"):
            container_nodes.node_paths(root_fd)


def test_a_name_that_has_gone_from_the_nodes(root_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_listings(monkeypatch, ["nvidia-gone", "nvidia0"], [])
    assert container_nodes.node_paths(root_fd) == ("/dev/nvidia0",)


def test_a_cgroup_that_cannot_be_read_is_not_none(full: None) -> None:
    """What its device program gives would not count, and its GPU would be free."""
    with pytest.raises(StepError, match=rf"^read the cgroup of the process {os.getpid()}: too many open files"):
        container_nodes.cgroup_of(os.getpid())


@pytest.mark.parametrize("name", ["ESRCH", "ENOENT", "EACCES"])
def test_a_process_that_is_gone_or_not_ours(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    _stat_fails(monkeypatch, getattr(errno, name))
    assert container_nodes.mount_namespace("1") == 0


def test_a_mount_namespace_that_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    _stat_fails(monkeypatch, errno.ENOMEM)
    with pytest.raises(StepError, match=r"^see the mount namespace of the process 1: cannot allocate memory"):
        container_nodes.mount_namespace("1")


def _stat_fails(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def stat(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(container_nodes, "posix", SimpleNamespace(**{**vars(posix), "stat": stat}))
