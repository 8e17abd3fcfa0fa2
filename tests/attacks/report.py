"""A pytest plugin (``-p tests.attacks.report``) that writes as JSON which attacks a runtime has held, and which not.

The file is written after each test, so that a run that was ended says how far it came.  A test that takes longer than
``--attack-limit`` seconds is ended and counts as one that hangs; the others go on.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import runtime_path, runtime_version

#: Seconds for each of a test's setup, call and teardown.
LIMIT = 180


class TookTooLong(Exception):
    """The test was ended from outside: something in it waits for ever."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--attack-report", metavar="FILE", help="write the results of the tests marked `attack` here")
    parser.addoption("--attack-limit", metavar="SECONDS", type=int, default=LIMIT, help="end a test that takes longer")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--attack-report"):
        worker = hasattr(config, "workerinput")  # of pytest-xdist: what it finds goes to the process that has started it
        config.pluginmanager.register(Report(None if worker else Path(path), config), "attack-report")


class Report:
    """Collects the outcomes for each (class, what): ``held``, or ``falls``, ``fails``, ``hangs`` or ``not tried`` with a
    colon and the reason."""

    def __init__(self, path: Path | None, config: pytest.Config) -> None:
        self.path, self.limit = path, config.getoption("--attack-limit")
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = runtime_version()
        if os.path.basename(runtime_path()) == "gpurun-fast":  # which says the same of itself as the launcher
            self.version += ", compiled front"
        self.complete = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        yield from self._limited(item)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        yield from self._limited(item)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        yield from self._limited(item)

    def _limited(self, item: pytest.Item) -> Generator[None, None, None]:
        def end(*_: object) -> None:
            raise TookTooLong(f"{item.nodeid} took longer than {self.limit} s")

        before = signal.signal(signal.SIGALRM, end)
        signal.alarm(self.limit)
        try:
            yield
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        outcome = _outcome(report, call)
        if outcome.startswith("falls"):
            vars(item)["fell"] = True
        elif report.when == "teardown" and "fell" in vars(item):
            return report  # an attack that has succeeded leaves things behind
        if outcome:
            said = [value for name, value in item.user_properties if name == "counted"] if report.when == "call" else []
            file = item.location[0]
            # as an attribute of the report it comes back from a worker, too
            vars(report)["attack"] = [[*mark.args[:2], file, outcome, said] for mark in item.iter_markers("attack")]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, what, file, outcome, said in getattr(report, "attack", ()):
            row = self.rows.setdefault((name, what), {"files": [], "outcomes": [], "counted": []})
            row["outcomes"].append(outcome)
            row["counted"] += said
            if file not in row["files"]:
                row["files"].append(file)
        if report.when == "teardown":
            self._write()

    def pytest_sessionfinish(self) -> None:
        self.complete = True
        self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        rows = [{"class": name, "what": what, **row} for (name, what), row in self.rows.items()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        made = self.path.with_suffix(".new")
        made.write_text(json.dumps({"version": self.version, "complete": self.complete, "rows": rows}, indent=1))
        made.rename(self.path)


def _outcome(report: pytest.TestReport, call: pytest.CallInfo[None]) -> str:
    if hasattr(report, "wasxfail"):
        reason = str(report.wasxfail)
        return f"falls: {reason.removeprefix('reason: ').removeprefix('falls: ')}" if report.skipped else "held"
    if report.failed:
        if call.excinfo is not None and call.excinfo.errisinstance(TookTooLong):
            return f"hangs: {report.when}"
        text = str(call.excinfo.value) if call.excinfo is not None else str(report.longrepr)
        return f"fails: {' '.join(text.split())[:200]}"
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
        return f"not tried: {reason.removeprefix('Skipped: ')}"
    return "held" if report.when == "call" else ""
