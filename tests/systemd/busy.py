"""A container that is always busy, and may have a fifth of a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.native.waiting import wait_until

PERIODS_S, QUOTA_US = 0.1, 20_000  # --cpus 0.2, or this quota of a period of 100 ms


def held_to_a_fifth(cpu_stat: Path, counters: Callable[[Path], dict[str, int]]) -> None:
    """Wait until the kernel has held the cgroup back a few times; it must not have had more than its part meanwhile.

    What another container has had in that time tells nothing on a machine that is busy.
    """
    began, before = time.monotonic(), counters(cpu_stat)
    wait_until(lambda: counters(cpu_stat)["nr_throttled"] >= before["nr_throttled"] + 5)
    used = counters(cpu_stat)["usage_usec"] - before["usage_usec"]
    # Of the periods one has begun before and one may have begun since.
    assert used <= ((time.monotonic() - began) / PERIODS_S + 2) * QUOTA_US
