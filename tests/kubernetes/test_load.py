"""The short form of the load test; `make load-kubernetes` is the long one."""

from __future__ import annotations

from tests.kubernetes.load import load
from tests.needs_nodes import needs_nodes

pytestmark = needs_nodes


def test_a_thousand_pods_at_sixteen_at_a_time() -> None:
    done, before, after = load(1000, 16, restarts=2)
    assert not done.errors
    assert sorted(done.started) == sorted(f"pod-{i}" for i in range(1000))
    assert after - before < 4096, f"{before} KiB, then {after} KiB"
