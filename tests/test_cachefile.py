"""Files kept by name: what is found again, and all that counts as nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun import cachefile as cache

DATA = bytes(range(64))


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / ".cache")


def test_what_is_kept_is_found(directory: str) -> None:
    assert cache.load(directory, "a", 1 << 20) == b""
    cache.save(directory, "a", DATA)
    assert cache.load(directory, "a", 1 << 20) == DATA
    assert cache.load(directory, "b", 1 << 20) == b""
    assert os.stat(directory).st_mode & 0o777 == 0o700
    assert os.listdir(directory) == ["a"]


@pytest.mark.parametrize("damage", [b"", b"x", bytes(80), DATA])
def test_a_damaged_entry_is_none(directory: str, damage: bytes) -> None:
    cache.save(directory, "a", DATA)
    Path(directory, "a").write_bytes(damage)
    assert cache.load(directory, "a", 1 << 20) == b""
    cache.save(directory, "a", DATA)
    assert cache.load(directory, "a", 1 << 20) == DATA


def test_one_bit_is_damage(directory: str) -> None:
    cache.save(directory, "a", DATA)
    path = Path(directory, "a")
    whole = path.read_bytes()
    for at in (0, 20, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert cache.load(directory, "a", 1 << 20) == b""


def test_a_directory_that_others_can_write_is_not_used(directory: str) -> None:
    cache.save(directory, "a", DATA)
    os.chmod(directory, 0o777)
    assert cache.load(directory, "a", 1 << 20) == b""
    cache.save(directory, "b", DATA)
    os.chmod(directory, 0o700)
    assert cache.load(directory, "a", 1 << 20) == DATA
    assert cache.load(directory, "b", 1 << 20) == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_a_directory_of_another_is_not_used(directory: str) -> None:
    cache.save(directory, "a", DATA)
    os.chown(directory, 1000, 1000)
    assert cache.load(directory, "a", 1 << 20) == b""


def test_links_are_not_followed(directory: str, tmp_path: Path) -> None:
    cache.save(directory, "a", DATA)
    os.rename(Path(directory, "a"), tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", Path(directory, "a"))
    assert cache.load(directory, "a", 1 << 20) == b""
    os.rename(directory, tmp_path / "moved")
    os.symlink(tmp_path / "moved", directory)
    cache.save(directory, "b", DATA)
    assert not (tmp_path / "moved" / "b").exists()


def test_the_cache_is_bounded_and_loses_the_oldest(directory: str) -> None:
    for i in range(cache.MAX_ENTRIES * 2):
        cache.save(directory, f"e{i}", DATA)
        os.utime(Path(directory, f"e{i}"), (i, i))
    left = sorted(int(name[1:]) for name in os.listdir(directory))
    assert len(left) <= cache.MAX_ENTRIES
    assert left == list(range(cache.MAX_ENTRIES * 2 - len(left), cache.MAX_ENTRIES * 2))


def test_what_cannot_be_kept_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache.save(str(tmp_path / "file"), "a", DATA)
    cache.save(str(tmp_path / "none" / "none"), "a", DATA)
