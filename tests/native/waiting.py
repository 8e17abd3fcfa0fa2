"""Waiting for what another process does, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SECONDS = 60.0


def wait_until(
    done: Callable[[], Any], seconds: float = SECONDS, meanwhile: Callable[[], str | None] = lambda: None
) -> None:
    """Wait until *done* says so; fails after *seconds*, or once *meanwhile* says why it never will."""
    end, pause = time.monotonic() + seconds, 0.002
    while not done():
        why = meanwhile()
        if why is not None and not done():
            raise AssertionError(why)
        assert time.monotonic() < end, f"not so after {seconds:g} s"
        time.sleep(pause)
        pause = min(pause * 1.2, 0.05)  # looking is work, which the other process may be waiting for
