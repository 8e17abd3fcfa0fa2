"""Parsed documents that are kept: named by their text, in a directory that is ours alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun import document_cache
from gpurun.cachefile import save
from gpurun.document_cache import keep_documents
from gpurun.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VALUE = {"a": [1, 1.5, "\udcff", True, None, {"b": []}]}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A state root whose cache is in use; the cache itself is ``.root.documents`` beside it."""
    keep_documents(str(tmp_path / "root"))
    yield tmp_path / "root"
    keep_documents("")


def cache(root: Path) -> Path:
    return root.with_name(".root.documents")


def unparsed() -> Any:
    raise AssertionError("parsed although it is kept")


def test_the_same_text_is_parsed_once(root: Path) -> None:
    assert document_cache.cached_value("yaml", b"x", lambda: VALUE) == VALUE
    assert document_cache.cached_value("yaml", b"x", unparsed) == VALUE
    assert (
        document_cache.cached_value("toml", b"x", lambda: 1) == 1
        and document_cache.cached_value("yaml", b"y", lambda: 2) == 2
    )
    assert len(os.listdir(cache(root))) == 3


def test_without_a_cache_each_call_parses(tmp_path: Path) -> None:
    keep_documents("")
    numbers = iter((1, 2))
    assert [document_cache.cached_value("yaml", b"x", lambda: next(numbers)) for _ in range(2)] == [1, 2]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("hostile", ["open to others", "a link", "damaged", "no marshal"])
def test_what_is_not_ours_is_not_believed(root: Path, tmp_path: Path, hostile: str) -> None:
    document_cache.cached_value("yaml", b"x", lambda: "kept")
    (name,) = os.listdir(cache(root))
    if hostile == "open to others":
        cache(root).chmod(0o777)
    elif hostile == "a link":
        cache(root).rename(tmp_path / "elsewhere")
        cache(root).symlink_to(tmp_path / "elsewhere")
    elif hostile == "damaged":
        (cache(root) / name).write_bytes((cache(root) / name).read_bytes()[:-1] + b"!")
    else:
        save(str(cache(root)), name, b"\xff")
    assert document_cache.cached_value("yaml", b"x", lambda: "parsed") == "parsed"


def test_what_is_wrong_is_told_each_time_and_never_kept(root: Path) -> None:
    for source in ("f", "g"):
        with pytest.raises(ConfigError, match=f"^{source}: line 1: is not valid TOML"):
            document_cache.read_toml(b"a", source)
        with pytest.raises(ConfigError, match=f"^{source}: line 1: is not valid YAML"):
            document_cache.read_yaml(b"a: b: c", source)
    assert not cache(root).exists()


def test_the_readers_use_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        assert document_cache.read_toml(b"[a]\nb = '\xff'\n", "f") == {"a.b": "\udcff"}
        assert document_cache.read_yaml(b"a: 0666\n", "f") == {"a": 0o666}
        monkeypatch.setattr("gpurun.formats.toml.parse", unparsed)
        monkeypatch.setattr("gpurun.formats.yaml.read_yaml", unparsed)
    assert len(os.listdir(cache(root))) == 2
