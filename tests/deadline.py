"""What might block for ever, in the process of a test."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """What is not over after *seconds* ends with an AssertionError, a system call that blocks too."""

    def over(*_: object) -> None:
        raise AssertionError(f"it has blocked for {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
