"""The documents as a site: every page is in the menu, every link and picture is there, and reading needs no network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names of the headings of *page*, as the site makes them."""
    text = _FENCE.sub("", page.read_text())
    titles = [re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_are_there(page: Path) -> None:
    """Within docs/: what is above it is no part of the site."""
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_relative_to(DOCS) and target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_is_in_the_menu() -> None:
    def pages(menu: object) -> list[str]:
        if isinstance(menu, str):
            return [menu]
        assert isinstance(menu, dict | list)
        values = menu.values() if isinstance(menu, dict) else menu
        return [page for value in values for page in pages(value)]

    menu = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages(menu)) == [str(page.relative_to(DOCS)) for page in PAGES]


def test_reading_needs_no_network() -> None:
    """A diagram that a script from elsewhere would draw is source text where there is no network: here they are pictures."""
    for page in PAGES:
        text = page.read_text()
        assert "```mermaid" not in text and not re.search(r"!\[[^]]*\]\(https?:", text), page.name
    settings = (REPOSITORY / "mkdocs.yml").read_text()
    assert "http" not in settings and "font: false" in settings


def test_the_start_page_shows_a_command_and_a_picture() -> None:
    text = (DOCS / "index.md").read_text()
    assert re.search(r"^    docker run .*--runtime gpurun.* nvidia-smi$", text, re.MULTILINE)
    assert re.search(r"!\[[^]]+\]\(screens/[\w-]+\.svg\)", text)


@pytest.mark.packages
@pytest.mark.slow
def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    """As `make docs` builds it; no page of it fetches anything from elsewhere."""
    made = REPOSITORY / "build/docs-env/bin/mkdocs"
    if not made.exists():
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
        pip = [str(tmp_path / "env/bin/pip"), "-q", "install", "mkdocs-material>=9"]
        if subprocess.run(pip, capture_output=True).returncode:
            pytest.skip("mkdocs-material cannot be installed here")
        made = tmp_path / "env/bin/mkdocs"
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(REPOSITORY / "mkdocs.yml", tmp_path)
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [made, "build", "--strict", "--site-dir", tmp_path / "site", "--config-file", tmp_path / "mkdocs.yml"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/concepts/index.html").read_text()
    assert "pictures/calls.svg" in page
    assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?:', page)
