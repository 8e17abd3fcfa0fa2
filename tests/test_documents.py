"""The documents that people read say what the code says: error texts, variables, files, links."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs"
PAGES = [*(REPOSITORY / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")), *sorted(DOCS.rglob("*.md"))]


@functools.cache
def constants() -> set[str]:
    """All texts of the source, those of f-strings in their parts."""
    found = set()
    for path in (REPOSITORY / "src/gpurun").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def rows(page: str) -> list[tuple[str, str]]:
    """(section, first cell) of each row of the tables of a page, without their heads."""
    found, section, inside = [], "", False
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        if line.startswith("|---"):
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside:
            found.append((section, line.split("|")[1].strip()))
    return found


#: What others print, not gpurun: engines, and programs in containers.
OTHERS = re.compile(r"^(programs in the container|`nvidia-smi: )")
TEXTS = [
    text
    for section, cell in rows("troubleshooting.md")
    if section != "Engines" and not OTHERS.match(cell)
    for text in re.findall(r"`([^`]+)`", cell)
]


@pytest.mark.parametrize("text", TEXTS)
def test_troubleshooting_quotes_what_is_printed(text: str) -> None:
    assert any(text in constant for constant in constants()), "no text of the source has these words"


def test_there_are_texts_to_look_for() -> None:
    assert len(TEXTS) > 20


def test_every_variable_of_gpuruns_own_is_documented() -> None:
    # The shell's completion sets the one, builds of packages the other.
    used = set(re.findall(r"\bGPURUN_[A-Z_]+\b", "\n".join(constants()))) - {"GPURUN_COMPLETE", "GPURUN_COMMIT"}
    told = {name for _, cell in rows("configuration.md") for name in re.findall(r"`(GPURUN_[A-Z_]+)`", cell)}
    assert used == told


def test_every_key_of_our_table_is_documented() -> None:
    used = {c.removeprefix("gpurun.") for c in constants() if re.fullmatch(r"gpurun\.[a-z]+-[a-z-]+", c)}
    told = {name for _, cell in rows("configuration.md") for name in re.findall(r"^`([a-z]+-[a-z-]+)`", cell)}
    assert used and used == told


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    # Of generated pages only the links: their cells quote tests and other runtimes.
    if page not in [DOCS / name for name in ("clients.md", "conformance.md", "spec-coverage.md")]:
        for target in re.findall(r"\b(docs/[\w.-]+\.md)\b", text):
            assert (REPOSITORY / target).exists(), f"{page.name} names {target}"


def test_every_mechanism_is_found_from_the_architecture() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    pages = {path.relative_to(REPOSITORY).as_posix() for path in (DOCS / "internals").glob("*.md")}
    assert pages and pages == set(re.findall(r"\]\((docs/internals/[\w-]+\.md)\)", text))
