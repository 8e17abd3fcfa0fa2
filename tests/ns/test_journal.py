"""The journal of what is made in a rootfs, and taking it back: cut at any byte, changed by others, shared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.ns.journal import (
    DIRECTORY,
    FILE,
    LINK,
    REWRITTEN,
    ROOTFS,
    TEMPORARY,
    Journal,
    Original,
    Trace,
    append,
    pack_rewritten,
    parse,
    unpack_rewritten,
)
from gpurun.ns.path import make_dirs, make_target
from gpurun.ns.undo import digest, undo


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    return tmp_path / "rootfs"


@pytest.fixture
def root_fd(rootfs: Path) -> Iterator[int]:
    fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture
def journal(root_fd: int, tmp_path: Path) -> Journal:
    return Journal(root_fd, os.open(tmp_path / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC))


def text(tmp_path: Path) -> bytes:
    return (tmp_path / "journal").read_bytes()


def seen(traces: tuple[Trace, ...]) -> list[tuple[str, str]]:
    return [(t.kind, t.path) for t in traces]


def test_records_come_back_in_the_order_of_their_stamps(journal: Journal, tmp_path: Path) -> None:
    append(journal.fd, DIRECTORY, "b", stamp=20)
    append(journal.fd, LINK, "a\nb", b"\xff:,", stamp=10)
    append(journal.fd, ROOTFS, "/x", stamp=5)
    found = parse(text(tmp_path))
    assert found == (Trace(ROOTFS, 5, "/x"), Trace(LINK, 10, "a\nb", b"\xff:,"), Trace(DIRECTORY, 20, "b"))


def test_a_cancelled_record_is_none_whoever_wrote_in_between(journal: Journal, tmp_path: Path) -> None:
    journal.note(DIRECTORY, "etc/a")
    append(journal.fd, FILE, "etc/of another container")
    journal.cancel()
    assert seen(parse(text(tmp_path))) == [(FILE, "etc/of another container")]


def test_every_cut_gives_a_beginning_of_the_whole(journal: Journal, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        journal.note(REWRITTEN, f"etc/{name}", pack_rewritten(b"\1" * 32, Original(b"12:x,\0", 0o600, 1, 2, 3)))
    data = text(tmp_path)
    whole = parse(data)
    assert [unpack_rewritten(t.rest)[1].content for t in whole] == [b"12:x,\0"] * 3
    for n in range(len(data)):
        assert parse(data[:n]) == whole[: len(parse(data[:n]))]


@pytest.mark.parametrize("data", [b"", b"x", b"99999999999999999999:", b"3:abc,", b"8:a\0b\0c\0dd,", b"-1:,", b"5"])
def test_what_is_no_journal_is_empty(data: bytes) -> None:
    assert parse(data) == ()


def test_a_note_stands_there_before_the_thing(journal: Journal, root_fd: int, tmp_path: Path, rootfs: Path) -> None:
    """mkdir(2) fails here, after the note: the note must have been taken back, not left out."""
    rootfs.joinpath("etc/f").write_text("")
    with pytest.raises(NotADirectoryError):
        make_dirs(root_fd, "/etc/f/x", journal)
    os.close(make_target(root_fd, "/a/b/c", False, journal))
    assert seen(parse(text(tmp_path))) == [(DIRECTORY, "a"), (DIRECTORY, "a/b"), (FILE, "a/b/c")]
    assert undo(root_fd, parse(text(tmp_path))) == ()
    assert sorted(os.listdir(rootfs)) == ["etc"]


def rewritten(ours: bytes, original: Original, path: str = "etc/c") -> tuple[Trace, ...]:
    return (Trace(REWRITTEN, 1, path, pack_rewritten(digest(ours), original)),)


def test_a_rewritten_file_comes_back_as_it_was(root_fd: int, rootfs: Path) -> None:
    (rootfs / "etc/c").write_bytes(b"ours")
    assert undo(root_fd, rewritten(b"ours", Original(b"theirs", 0o640, os.getuid(), os.getgid(), 1_000_000_007))) == ()
    stat = (rootfs / "etc/c").stat()
    assert (rootfs / "etc/c").read_bytes() == b"theirs"
    assert (stat.st_mode & 0o7777, stat.st_mtime_ns) == (0o640, 1_000_000_007)
    assert os.listdir(rootfs / "etc") == ["c"]


def test_a_file_there_was_not_goes(root_fd: int, rootfs: Path) -> None:
    (rootfs / "etc/c").write_bytes(b"ours")
    undo(root_fd, rewritten(b"ours", Original(None)))
    assert os.listdir(rootfs / "etc") == []


@pytest.mark.parametrize("kind", ["other content", "link", "directory", "fifo", "gone", "parent is a link"])
def test_what_the_container_changed_is_left(root_fd: int, rootfs: Path, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "ours-outside"
    secret.write_bytes(b"ours")
    path = rootfs / "etc/c"
    if kind == "other content":
        path.write_bytes(b"changed")
    elif kind == "link":
        path.symlink_to(secret)
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "parent is a link":
        (rootfs / "etc").rmdir()
        (tmp_path / "c").write_bytes(b"ours")
        (rootfs / "etc").symlink_to(tmp_path)
    assert undo(root_fd, rewritten(b"ours", Original(b"theirs"))) == ()
    assert secret.read_bytes() == b"ours"
    if kind == "other content":
        assert path.read_bytes() == b"changed"
    if kind == "parent is a link":
        assert (tmp_path / "c").read_bytes() == b"ours"


def test_what_an_interrupted_create_or_undo_left_goes_too(root_fd: int, rootfs: Path) -> None:
    (rootfs / "etc/.c.1234").write_bytes(b"half")
    (rootfs / "etc/.c.gpurun-undo").write_bytes(b"half")
    (rootfs / "etc/c").write_bytes(b"ours")
    traces = (Trace(TEMPORARY, 0, "etc/.c.1234"), *rewritten(b"ours", Original(b"theirs")))
    assert undo(root_fd, traces) == ()
    assert os.listdir(rootfs / "etc") == ["c"] and (rootfs / "etc/c").read_bytes() == b"theirs"


def test_two_containers_are_undone_from_the_last_to_the_first(root_fd: int, rootfs: Path) -> None:
    (rootfs / "etc/c").write_bytes(b"second")
    traces = rewritten(b"first", Original(b"image")) + rewritten(b"second", Original(b"first"))
    undo(root_fd, traces)
    assert (rootfs / "etc/c").read_bytes() == b"image"


@pytest.mark.parametrize("changed", [False, True])
def test_the_time_of_a_directory_comes_back_unless_others_changed_it(
    journal: Journal, root_fd: int, rootfs: Path, tmp_path: Path, changed: bool
) -> None:
    os.utime(rootfs / "etc", ns=(10**18, 10**18))
    os.close(make_target(root_fd, "/etc/mountpoint", False, journal))
    journal.close()
    if changed:
        os.utime(rootfs / "etc", ns=(10**18, 10**18 + 5))
    undo(root_fd, parse(text(tmp_path)))
    assert os.listdir(rootfs / "etc") == []
    assert ((rootfs / "etc").stat().st_mtime_ns == 10**18) is not changed


@pytest.mark.parametrize("path", ["", ".", "..", "etc/..", "../outside", "/etc/x", "etc/../../outside"])
def test_no_path_leads_out(root_fd: int, rootfs: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").mkdir()
    (rootfs / "etc/x").mkdir()
    undo(root_fd, (Trace(DIRECTORY, 1, path),))
    assert (tmp_path / "outside").exists() and rootfs.exists()
