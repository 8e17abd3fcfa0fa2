"""What is in the /dev of a container: seen whole, or an error, but never too little."""

from __future__ import annotations

import os
import posix
import resource
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gpurun.errors import GpurunError
from gpurun.gpu.leases import container_nodes

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
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 512), before[1]))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    yield
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


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
