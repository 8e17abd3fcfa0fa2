"""A pytest plugin (``-p tests.clients.report``): what the operations have shown, as JSON, for docs/clients.md."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import runtime_version

VERSIONS = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--clients-report", metavar="FILE", help="write what the operations of the clients have shown here")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--clients-report"):
        config.pluginmanager.register(Report(Path(path), config), "clients-report")


class Report:
    """Collects the outcome of each operation, from pytest-xdist's workers too, and writes them."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self.path, self.config, self.version = path, config, runtime_version()
        self.versions: dict[str, str] = {}
        self.operations: list[dict[str, Any]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        operation = getattr(item, "callspec", None) and item.callspec.params.get("operation")  # type: ignore[attr-defined]
        if operation and (report.when == "call" or report.skipped):
            why = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
            found = {"client": operation.client, "name": operation.name, "outcome": report.outcome, "why": why}
            report.user_properties = [
                ("operation", found | dict(item.user_properties)), ("versions", self.config.stash.get(VERSIONS, {}))
            ]  # fmt: skip
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told: dict[str, Any] = dict(report.user_properties)
        if "operation" in told:
            self.operations.append(told["operation"])
            self.versions |= told["versions"]
            self.write()

    def pytest_sessionfinish(self) -> None:
        self.write()

    def write(self) -> None:
        """After each operation: what ends a run early does not take away what was seen until then."""
        if hasattr(self.config, "workerinput"):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        versions = {"gpurun": self.version, **self.versions}
        self.path.write_text(json.dumps({"versions": versions, "operations": self.operations}, indent=1))
