"""Directories made with those above them, and files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import posix
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.errors import NotRegularFile
from gpurun.linux import files
from gpurun.linux.files import mkdir_p, read_regular, write_atomically
from tests.deadline import within


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(*paths: Path) -> list[int]:
    return [path.stat().st_mode & 0o7777 for path in paths]


def test_what_is_missing_is_made_and_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(0o755)
    mkdir_p(f"{tmp_path}/a//b/c/", 0o700)
    mkdir_p(f"{tmp_path}/a/b/c", 0o777)
    assert modes(tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c") == [0o755, 0o700, 0o700]


def test_the_last_one_has_a_mode_of_its_own(tmp_path: Path) -> None:
    mkdir_p(f"{tmp_path}/a/b", 0o700, last_mode=0o1711)
    assert modes(tmp_path / "a", tmp_path / "a/b") == [0o700, 0o1711]


def test_below_an_open_directory(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_PATH)
    mkdir_p("a/b", 0o750, fd)
    mkdir_p("", 0o750, fd)
    os.close(fd)
    assert modes(tmp_path / "a", tmp_path / "a/b") == [0o750, 0o750]


def test_the_error_names_the_directory_that_could_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    with pytest.raises(NotADirectoryError) as error:
        mkdir_p(f"{tmp_path}/a/b/c", 0o700)
    assert error.value.filename == f"{tmp_path}/a/b"


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "found.yaml"
    rename, seen = posix.rename, []

    def renamed(old: str, new: str) -> None:
        seen.append((path.exists(), Path(old).read_text(), Path(old).name))
        rename(old, new)

    monkeypatch.setattr(posix, "rename", renamed)
    write_atomically(str(path), b"all of it", 0o640)
    (exists, text, name) = seen[0]
    assert not exists and text == "all of it" and path.read_text() == "all of it" and modes(path) == [0o640]
    # Engines read each *.yaml and *.json of a CDI directory, also a hidden one, and refuse a device that two of them have.
    assert name.startswith(".") and not name.endswith(".yaml")
    assert os.listdir(tmp_path) == ["found.yaml"]


def test_what_a_killed_writer_left_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / ".state.new").write_text("half")
    write_atomically(f"{tmp_path}/state", b"whole", 0o600)
    assert (tmp_path / "state").read_text() == "whole"


def test_of_two_who_write_at_once_the_last_one_stays_and_neither_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one writes all of its file in the moment before the first one renames its own."""
    rename, writers = posix.rename, iter([b"the second"])

    def renamed(old: str, new: str) -> None:
        for data in writers:
            write_atomically(new, data, 0o600)
            assert Path(new).read_bytes() == data
        rename(old, new)

    monkeypatch.setattr(posix, "rename", renamed)
    write_atomically(f"{tmp_path}/state", b"the first", 0o600)
    assert os.listdir(tmp_path) == ["state"] and (tmp_path / "state").read_bytes() == b"the first"


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_file_is_on_the_disk_before_its_name_and_then_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    rename, fsync = posix.rename, posix.fsync
    done: list[object] = []

    def renamed(old: str, new: str) -> None:
        done.append("rename")
        rename(old, new)

    def synced(fd: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{fd}") if stat.S_ISDIR(os.fstat(fd).st_mode) else os.pread(fd, 99, 0))
        fsync(fd)

    monkeypatch.setattr(posix, "rename", renamed)
    monkeypatch.setattr(posix, "fsync", synced)
    monkeypatch.setattr(
        posix, "open", lambda path, flags, *more, o=posix.open: o(path, (flags & ~1) | (2 if flags & 1 else 0), *more)
    )
    write_atomically(f"{tmp_path}/state", b"all of it", 0o600, durable=durable)
    assert done == ([b"all of it", "rename", str(tmp_path)] if durable else ["rename"])


def test_an_exact_mode_is_that_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        write_atomically(f"{tmp_path}/exact", b"", 0o664, exact=True)
        write_atomically(f"{tmp_path}/less", b"", 0o664)
    finally:
        os.umask(umask)
    assert modes(tmp_path / "exact", tmp_path / "less") == [0o664, 0o600]


def test_of_a_full_disk_the_old_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space")

    (tmp_path / "state").write_text("old")
    monkeypatch.setattr(files, "write_all", full)
    with pytest.raises(OSError):
        write_atomically(f"{tmp_path}/state", b"new", 0o600)
    assert os.listdir(tmp_path) == ["state"] and (tmp_path / "state").read_text() == "old"


def test_nobody_reads_half_of_it(tmp_path: Path) -> None:
    path, texts = tmp_path / "told", (b"a" * 20_000, b"b" * 20_000)
    path.write_bytes(texts[0])
    done = threading.Event()

    def write() -> None:
        for n in range(300):
            write_atomically(str(path), texts[n % 2], 0o600)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    read = set()
    while not done.is_set():
        read.add(path.read_bytes())
    writer.join()
    assert read <= set(texts)


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    with within(60):
        assert read_regular(str(tmp_path / "file")) == read_regular(str(tmp_path / "link")) == b"text"
        assert read_regular(str(tmp_path / "file"), 2) == b"te"
        for name in ("fifo", ".", "/dev/null"):
            with pytest.raises(NotRegularFile, match="not a regular file"):
                read_regular(str(tmp_path / name))
        with pytest.raises(NotRegularFile, match="not a regular file"):
            read_regular(str(tmp_path / "link"), follow=False)
        with pytest.raises(FileNotFoundError):
            read_regular(str(tmp_path / "none"))
