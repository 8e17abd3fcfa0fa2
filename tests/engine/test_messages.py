"""The messages of the processes inside: a read that fails takes nothing of a message away."""

from __future__ import annotations

import _socket
import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gpurun.engine import messages
from gpurun.errors import StepError


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """Our end of a socket, and the end of the process that speaks."""
    ours, its = socket.socketpair()
    with ours, its:
        messages.expect_reports(ours.fileno())
        yield ours.fileno(), its.fileno()


@pytest.mark.parametrize("failing", [1, 2])
def test_a_read_that_fails(ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """The message is whole for the next who reads: dismiss() learns from it which process is to be ended."""
    calls = 0

    class Socket(_socket.socket):
        def recvmsg(self, *args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == failing:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            return super().recvmsg(*args)

    monkeypatch.setattr("_socket.socket", Socket)
    ours, its = ends
    messages.report(its, "child", 7)
    messages.report(its, "ready")
    with pytest.raises(StepError, match="cannot allocate memory"):
        messages.receive_report(ours, None)
    for word, numbers in (("child", (7,)), ("ready", ())):
        said = messages.receive_report(ours, None)
        assert said is not None and (said.word, said.numbers, said.sender) == (word, numbers, os.getpid())


def test_a_text_of_the_greatest_length(ends: tuple[int, int]) -> None:
    ours, its = ends
    messages.report(its, "failed", "x" * (1 << 17))
    messages.report(its, "ready")
    said = messages.receive_report(ours, (os.getpid(),))
    assert said is not None and said.text == "x" * ((1 << 16) - len("failed "))
    said = messages.receive_report(ours, (os.getpid(),))
    assert said is not None and said.word == "ready"


@pytest.mark.parametrize("data", [b"", b"\x05\0\0", b"\x05\0\0\0rea"])
def test_a_message_that_is_cut(data: bytes) -> None:
    ours, its = socket.socketpair()
    with ours:
        messages.expect_reports(ours.fileno())
        its.sendall(data)
        its.close()
        assert messages.receive_report(ours.fileno(), None) is None


def test_nothing_to_read_yet(ends: tuple[int, int]) -> None:
    ours, _ = ends
    os.set_blocking(ours, False)
    with pytest.raises(BlockingIOError):
        messages.receive_report(ours, None)
