"""Durations and lines of events."""

from __future__ import annotations

import json

import pytest

from gpurun.engine.caller.events import event, parse_duration
from gpurun.errors import GpurunError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("100ms", 0.1), ("1m30s", 90), ("1.5h", 5400), ("2h0m0.5s", 7200.5), ("250us", 0.00025), ("1µs", 1e-6)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "0s", "0", "5", "-5s", "s", "5 s", "5sec", "1.2.3s", ".s", "soon", "٣s", "1s2", "9" * 5000 + "s"]
)
def test_bad_durations(text: str) -> None:
    with pytest.raises(GpurunError, match="duration"):
        parse_duration(text)


def test_line() -> None:
    assert event("oom", "c1") == '{"type":"oom","id":"c1"}\n'
    assert json.loads(event("stats", "c1", {"a": None, "b": [1.5]})) == {
        "type": "stats",
        "id": "c1",
        "data": {"a": None, "b": [1.5]},
    }
