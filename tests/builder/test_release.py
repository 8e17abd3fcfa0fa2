"""The version of a package, and what the tree says of it in other places."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpurun import __version__
from gpurun.builder.libraries import LIBRARIES
from gpurun.builder.release import of_description, version

ROOT = Path(__file__).resolve().parents[2]
#: Library → its package of the index, where that has another name; Debian's is python3-LIBRARY.
NAMES = {"yaml": "pyyaml"}


@pytest.mark.parametrize(
    ("described", "made"),
    [
        ("", "0.2.0"),
        ("v0.2.0-0-g3f0c2a1", "0.2.0"),
        ("v0.2.0-12-g3f0c2a1", "0.2.0+12.g3f0c2a1"),
        ("v0.2.0-0-g3f0c2a1-dirty", "0.2.0+0.g3f0c2a1.dirty"),
    ],
)
def test_the_version_is_the_tags(described: str, made: str) -> None:
    assert of_description(described, "0.2.0") == made


def test_a_tag_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the tag is v0\.3\.0, but gpurun\.__version__ is 0\.2\.0"):
        of_description("v0.3.0-0-g3f0c2a1", "0.2.0")


def test_a_source_archive_is_what_it_was_made_as(tmp_path: Path) -> None:
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: gpurun-runtime\nVersion: 0.1.0+3.gabc\n\nVersion: 9\n")
    assert version(tmp_path) == "0.1.0+3.gabc"


def test_the_tree_is_of_one_version() -> None:
    released = re.findall(r"^## (\d\S*) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    debian = re.match(r"gpurun \((\S+)\)", (ROOT / "debian/changelog").read_text())
    assert debian is not None
    assert released[0] == debian[1] == __version__


def test_what_a_build_needs_is_what_the_program_carries() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {re.split(r"[<>=!~]", word)[0].lower() for word in project["build-system"]["requires"]}
    control = (ROOT / "debian/control").read_text().partition("\n\n")[0]
    for name in LIBRARIES:
        assert NAMES.get(name, name) in wanted and f"python3-{name}" in control, name


class Clone:
    """What of the tree has to do with its version, in a repository of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        self._environ = {"PATH": os.environ["PATH"], "HOME": str(directory), "GIT_CONFIG_NOSYSTEM": "1", **who}
        for name in ("tools/release", "CHANGELOG.md", "debian/changelog", "src/gpurun/__init__.py"):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, directory / name)
        changelog = directory / "CHANGELOG.md"
        changelog.write_text(changelog.read_text().replace("## Unreleased\n", "## Unreleased\n\n- New.\n", 1))
        self.git("init", "-q")
        self.commit()

    def git(self, *words: str) -> None:
        subprocess.run(["git", "-C", self.directory, *words], env=self._environ, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")

    def release(self, version: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, str(self.directory / "tools/release"), version]
        return subprocess.run(words, env=self._environ, capture_output=True, text=True, timeout=60)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    return Clone(tmp_path)


def test_the_version_of_a_clone(clone: Clone) -> None:
    assert version(clone.directory) == __version__, "there is no tag yet"
    clone.git("tag", f"v{__version__}")
    assert version(clone.directory) == __version__
    (clone.directory / "CHANGELOG.md").write_text("changed")
    assert re.fullmatch(re.escape(__version__) + r"\+0\.g[0-9a-f]+\.dirty", version(clone.directory))
    clone.commit()
    assert re.fullmatch(re.escape(__version__) + r"\+1\.g[0-9a-f]+", version(clone.directory))
    clone.git("tag", "v77.0.0")
    with pytest.raises(ValueError, match=r"the tag is v77\.0\.0"):
        version(clone.directory)


def test_a_release_is_of_one_version(clone: Clone) -> None:
    done = clone.release("77.1.0")
    assert done.returncode == 0 and "v77.1.0: now `make dist deb`" in done.stdout, done.stderr
    changelog = (clone.directory / "CHANGELOG.md").read_text()
    assert re.search(r"^## Unreleased\n\n## 77\.1\.0 - \d{4}-\d\d-\d\d\n\n- New\.\n", changelog, re.MULTILINE)
    assert '__version__ = "77.1.0"' in (clone.directory / "src/gpurun/__init__.py").read_text()
    assert (clone.directory / "debian/changelog").read_text().startswith("gpurun (77.1.0) unstable; ")
    described = subprocess.run(
        ["git", "-C", clone.directory, "describe", "--tags", "--long", "--dirty"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert of_description(described, "77.1.0") == "77.1.0"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (__version__, f"CHANGELOG.md has a section {__version__} already"),
        ("1.2", "tools/release VERSION"),
        ("77.2.0", "commit what has changed first"),
    ],
)
def test_what_is_no_release(clone: Clone, wanted: str, said: str) -> None:
    if wanted == "77.2.0":
        (clone.directory / "new").touch()
    done = clone.release(wanted)
    assert done.returncode != 0 and said in done.stderr
    assert version(clone.directory) == __version__
