"""The short form of the tests, which ``make test`` runs, and the long one (``--long``, ``make test-long``).

Some tests do one thing many times: under each configuration, killed at each step, against a neighbour who may win a race.
A test marked ``sweep(keep)`` has *keep* of its cases in the short form, spread evenly from the first to the last, and those
marked ``short``; :func:`rounds` and :func:`stride` do so inside a test.  The long form does everything.
"""

from __future__ import annotations

import os

import pytest

_LONG = "GPURUN_TESTS_LONG"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="all cases of each test, and all rounds (make test-long)")


def configure(config: pytest.Config) -> None:
    if config.getoption("--long"):
        os.environ[_LONG] = "1"


def is_long() -> bool:
    return _LONG in os.environ


def rounds(count: int) -> int:
    """*count* in the long form, a third of them in the short one."""
    return count if is_long() else -(-count // 3)


def stride() -> int:
    """From one step at which something is killed to the next."""
    return 1 if is_long() else 3


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take from *items* what the short form leaves out, but for cases that somebody asks for, by name or by ``-k``."""
    if is_long() or config.getoption("keyword"):
        return
    sweeps: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sweep") and not item.get_closest_marker("short"):
            sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[pytest.Item] = set()
    for cases in sweeps.values():
        marker = cases[0].get_closest_marker("sweep")
        assert marker is not None
        keep = marker.args[0]
        kept = {round(i * (len(cases) - 1) / max(keep - 1, 1)) for i in range(keep)}
        left_out |= {item for index, item in enumerate(cases) if index not in kept and item.nodeid not in config.args}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
