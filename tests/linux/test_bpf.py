"""bpf(2) on a real cgroup: what the kernel accepts, lists and lets go."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterator
from errno import EINVAL, ENOENT
from pathlib import Path

import pytest

from gpurun.cgroup.devices import DeviceException, DeviceFilter, compile_filter
from gpurun.cgroup.tree import find_tree
from gpurun.errors import GpurunError
from gpurun.linux import bpf

DENY = bytes.fromhex("b4000000000000009500000000000000")  # r0 = 0; exit
ALLOW = bytes.fromhex("b4000000010000009500000000000000")


@pytest.fixture
def cgroup() -> Iterator[int]:
    if os.geteuid() != 0:
        pytest.skip("bpf(2) on cgroups needs root")
    try:
        root = find_tree().root
    except GpurunError as e:
        pytest.skip(str(e))
    path = Path(root, f"gpurun-test-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        path.mkdir()
    except OSError as e:
        pytest.skip(f"{root}: {e.strerror}")
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)
    path.rmdir()


def attached(cgroup: int, instructions: bytes) -> int:
    fd = bpf.prog_load(instructions)
    bpf.prog_attach(cgroup, fd)
    return fd


def test_attach_replace_detach(cgroup: int) -> None:
    assert bpf.prog_query(cgroup) == ()
    first = attached(cgroup, ALLOW)
    (first_id,) = bpf.prog_query(cgroup)
    again = bpf.prog_get_fd_by_id(first_id)
    second = bpf.prog_load(DENY)
    bpf.prog_attach(cgroup, second, replace_fd=again)
    (second_id,) = bpf.prog_query(cgroup)
    assert second_id != first_id
    bpf.prog_detach(cgroup, second)
    assert bpf.prog_query(cgroup) == ()
    with pytest.raises(OSError) as caught:
        bpf.prog_detach(cgroup, first)
    assert caught.value.errno == ENOENT
    for fd in (first, again, second):
        os.close(fd)


def test_more_programs_than_the_first_query_has_room_for(cgroup: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = bpf._bpf

    def count(command: int, attr: object, size: int) -> int:
        asked.append(command)
        return real(command, attr, size)

    # The kernel attaches 64 programs to a cgroup at most: what it answers then is played with a smaller room.
    fds = [attached(cgroup, ALLOW) for _ in range(3)]
    monkeypatch.setattr(bpf, "_bpf", count)
    monkeypatch.setattr(bpf, "_QUERY_SLOTS", 1)
    assert len(set(bpf.prog_query(cgroup))) == 3
    assert asked == [bpf.BPF_PROG_QUERY] * 2
    for fd in fds:
        os.close(fd)


def test_descriptors_are_close_on_exec(cgroup: int) -> None:
    fd = attached(cgroup, ALLOW)
    again = bpf.prog_get_fd_by_id(bpf.prog_query(cgroup)[0])
    assert not os.get_inheritable(fd)
    assert not os.get_inheritable(again)
    os.close(fd)
    os.close(again)


def test_an_interrupted_load_is_tried_again(cgroup: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = bpf._bpf, [BlockingIOError(11, "again")] * 5

    def interrupted(command: int, attr: object, size: int) -> int:
        if failures:
            raise failures.pop()
        return real(command, attr, size)

    monkeypatch.setattr(bpf, "_bpf", interrupted)
    os.close(bpf.prog_load(ALLOW))
    assert failures == []


def test_a_load_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(command: int, attr: object, size: int) -> int:
        raise BlockingIOError(11, "again")

    monkeypatch.setattr(bpf, "_bpf", interrupted)
    with pytest.raises(BlockingIOError):
        bpf.prog_load(ALLOW)


def test_what_the_verifier_refuses(cgroup: int) -> None:
    with pytest.raises(OSError) as caught:
        bpf.prog_load(ALLOW[:8])  # no exit
    assert caught.value.errno == EINVAL


def test_a_program_id_that_is_not_there(cgroup: int) -> None:
    with pytest.raises(FileNotFoundError):
        bpf.prog_get_fd_by_id(0xFFFFFFF0)


def test_the_verifier_takes_every_program_we_make(cgroup: int) -> None:
    source = random.Random(15)
    numbers = (None, 0, 1, 255, 2**31, 2**32 - 1)
    for count in (0, 1, 2, 3, 20, 300):
        for default in (True, False):
            exceptions = tuple(
                DeviceException(source.choice(numbers), source.choice(numbers), source.choice("bc"), source.randrange(1, 8))
                for _ in range(count)
            )
            os.close(bpf.prog_load(compile_filter(DeviceFilter(default, exceptions))))


@pytest.mark.parametrize("instructions", [DENY, ALLOW])
def test_what_the_kernel_says_of_a_program(cgroup: int, instructions: bytes) -> None:
    """Its instructions and its name: by these an update knows what another gpurun has attached."""
    fd = attached(cgroup, instructions)
    (number,) = bpf.prog_query(cgroup)
    by_id = bpf.prog_get_fd_by_id(number)
    assert bpf.prog_instructions(by_id) == instructions
    assert bpf.prog_name(by_id) == bpf.NAME
    bpf.prog_detach(cgroup, fd)
    os.close(by_id)
    os.close(fd)
