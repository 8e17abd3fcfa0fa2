"""pytest plugin: a failure is told when it happens, because a run in the guest that is cut short would never say it."""

from __future__ import annotations

import sys

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        print(f"\nFAILED {report.nodeid} ({report.when})\n{report.longreprtext}", file=sys.stderr, flush=True)
