"""Tests that make device nodes, which takes root: the one place where they are skipped."""

from __future__ import annotations

import os

import pytest

_WHY = "device nodes need root"

needs_nodes = pytest.mark.skipif(os.geteuid() != 0, reason=_WHY)


def require_nodes(real_nodes: bool = os.geteuid() == 0) -> None:
    """Skip the test, or the tests of the fixture, that calls this where the host has no *real_nodes*."""
    if not real_nodes:
        pytest.skip(_WHY)
