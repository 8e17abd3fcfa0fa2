"""The short form of the load test; `make load-kubernetes` is the long one."""

from __future__ import annotations

import os

import pytest

from tests.kubernetes.load import load

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")


def test_a_thousand_pods_at_sixteen_at_a_time() -> None:
    done, before, after = load(1000, 16, restarts=2)
    assert not done.errors
    assert sorted(done.started) == sorted(f"pod-{i}" for i in range(1000))
    assert after - before < 4096, f"{before} KiB, then {after} KiB"
