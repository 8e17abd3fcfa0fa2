"""docs/contract.md names tests that are there, and has a row for each test of the suites that quote runc's callers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: The suites whose tests are the contract, and nothing else.
SUITES = (
    "cli/test_contract.py",
    "cli/test_callers.py",
    "cli/test_wrong_words.py",
    "lifecycle/test_callers.py",
    "lifecycle/test_runcs_own.py",
)


def rows() -> list[tuple[str, str, str]]:
    found = []
    for line in (ROOT / "docs/contract.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[-1].startswith("`"):
            assert len(cells) == 3, line
            found.append((cells[0], cells[1], cells[2].strip("`")))
    return found


ROWS = rows()


def test_there_are_rows() -> None:
    text = (ROOT / "docs/contract.md").read_text()
    heads = len(re.findall(r"^\|---\|---\|---\|$", text, re.M))
    assert len(ROWS) == len(re.findall(r"^\| ", text, re.M)) - heads > 100, "a row without a test"


@pytest.mark.parametrize(("behaviour", "whom", "shown"), ROWS, ids=[f"{shown}-{i}" for i, (_, _, shown) in enumerate(ROWS)])
def test_rows_name_what_is_there(behaviour: str, whom: str, shown: str) -> None:
    assert behaviour and whom
    file, _, test = shown.partition("::")
    text = (ROOT / "tests" / file).read_text()
    assert "\ndef test_" in text if test == "*" else f"\ndef {test}(" in text, shown


@pytest.mark.parametrize("suite", SUITES)
def test_the_contracts_suites_have_rows(suite: str) -> None:
    tests = re.findall(r"^def (test_\w+)\(", (ROOT / "tests" / suite).read_text(), re.M)
    assert tests and set(tests) <= {shown.partition("::")[2] for _, _, shown in ROWS if shown.startswith(suite)}
