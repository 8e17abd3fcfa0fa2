"""The pictures in docs are of what the commands print now."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.screens import COMMANDS, SCREENS, WIDTHS, pictures

NAMES = [f"{name}-{columns}.svg" for name in COMMANDS for columns in WIDTHS]


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="g", dir="/var/tmp") as place:  # a path as long as that of `make screens`
        return pictures(Path(place))


def lines(picture: str) -> list[str]:
    root = ElementTree.fromstring(picture)
    return [element.text or "" for element in root.iter() if element.tag.endswith("text")]


def words(picture: str) -> set[str]:
    """What does not depend on the host: words without digits, paths and verdicts."""
    return {word for line in lines(picture) for word in re.findall(r"[A-Za-z][a-z]{3,}", line)}


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_of_now(name: str, made: dict[str, str]) -> None:
    kept = (SCREENS / name).read_text()
    if name.startswith(("gpu-list", "stats")):
        assert made[name] == kept, "`make screens` makes it again"
    else:  # says more of the machine that it was made on: its kernel, its cgroup tree
        assert len(words(made[name]) & words(kept)) > 0.7 * len(words(kept)), "`make screens` makes it again"


@pytest.mark.parametrize("name", NAMES)
def test_it_is_as_wide_as_it_says(name: str) -> None:
    columns = int(name.rpartition("-")[2].removesuffix(".svg"))
    shown = lines((SCREENS / name).read_text())
    assert len(shown) > 2 and max(len(line) for line in shown) <= columns + 2
    assert not any("\x1b" in line or "/tmp/" in line for line in shown)


def test_each_is_in_the_documents() -> None:
    text = Path(SCREENS.parent / "looking.md").read_text()
    assert sorted(set(re.findall(r"screens/([\w-]+\.svg)", text))) == sorted(NAMES)
    assert sorted(path.name for path in SCREENS.iterdir()) == sorted(NAMES)
