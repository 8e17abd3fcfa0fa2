"""A pytest plugin (``-p tests.conformance.report``) that writes what the marked tests have shown, as JSON.

``--conformance-report FILE`` takes the results of one runtime; ``python -m tests.conformance.document`` runs this for each
runtime and makes docs/conformance.md of the files.  What a runtime is known to fail (``not_on``) is left out of ordinary
runs; in a report the tests of this directory run all the same, so that the table shows what was seen.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import runtime_path, runtime_version

HERE = Path(__file__).resolve().parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--conformance-report", metavar="FILE", help="write the results of the tests marked `conforms` here")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--conformance-report"):
        config.pluginmanager.register(Report(Path(path)), "conformance-report")


def requirements(item: pytest.Item) -> list[dict[str, str]]:
    """Section, level and words of what *item* holds a runtime to; a test of another suite may name several."""
    found = []
    for mark in item.iter_markers("conforms"):
        doc = (getattr(item, "function", item).__doc__ or "").strip().partition("\n")[0]
        what = mark.kwargs.get("what") or doc or item.originalname.removeprefix("test_").replace("_", " ")  # type: ignore[attr-defined]
        found.append({"section": mark.args[0], "level": mark.kwargs["level"], "what": what})
    return found


def known_faults(item: pytest.Item, version: str) -> list[str]:
    return [m.kwargs["reason"] for m in item.iter_markers("not_on") if version.startswith(m.args[0])]


class Report:
    """Collects one outcome for each test and writes them at the end."""

    def __init__(self, path: Path) -> None:
        self.path, self.version = path, runtime_version()
        self.tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            faults = known_faults(item, self.version)
            name, bracket, parameters = item.nodeid.partition("[")
            self.tests[item.nodeid] = {
                "test": name,
                "parameters": parameters.removesuffix("]") if bracket else "",
                "requirements": requirements(item),
                "faults": faults,
                "outcome": "skip",
                "why": "not run",
            }
            if faults and item.path.is_relative_to(HERE):
                skips = [m for m in item.own_markers if m.name == "skip" and m.kwargs.get("reason") in faults]
                item.own_markers[:] = [m for m in item.own_markers if m not in skips]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        test = self.tests[item.nodeid]
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            test["why"] = reason.removeprefix("Skipped: ")
            if test["why"] in test["faults"]:
                test["outcome"] = "known"
        elif report.failed:
            test["outcome"] = "fail"
            test["why"] = "what was made is left behind" if report.when == "teardown" else ""
            if test["faults"]:  # it is known: no reason to call the run a failure
                report.outcome, report.wasxfail = "skipped", test["faults"][0]
        elif report.when == "call":
            test["outcome"], test["why"] = "pass", ""  # a teardown that fails comes after this, and counts
        return report

    def pytest_sessionfinish(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        document = {"path": runtime_path(), "version": self.version, "tests": [*self.tests.values()]}
        self.path.write_text(json.dumps(document, indent=1))
