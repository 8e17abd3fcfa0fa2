"""Directories of a rootfs that are resolved once: what is made under them, what is noted, what an exchanged one does."""

from __future__ import annotations

import errno
import os
import posix
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.errors import GpurunError, StepError
from gpurun.ns.directory_cache import DirectoryCache
from gpurun.ns.journal import DIRECTORY, FILE, LINK, TIMES, Journal, parse
from gpurun.ns.undo import undo


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    (tmp_path / "rootfs/usr/lib").mkdir(parents=True)
    (tmp_path / "rootfs/lib").symlink_to("/usr/lib")
    (tmp_path / "outside").mkdir()
    return tmp_path / "rootfs"


@pytest.fixture
def places(rootfs: Path, tmp_path: Path) -> Iterator[DirectoryCache]:
    before = os.listdir("/proc/self/fd")
    fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
    journal = Journal(fd, os.open(tmp_path / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC))
    made = DirectoryCache(fd, journal)
    yield made
    made.close()
    journal.close()
    os.close(fd)
    assert os.listdir("/proc/self/fd") == before


def noted(tmp_path: Path) -> list[tuple[str, str]]:
    return [(t.kind, t.path) for t in parse((tmp_path / "journal").read_bytes()) if t.kind in (DIRECTORY, FILE)]


def file_at(places: DirectoryCache, path: str) -> tuple[int, int]:
    fd = places.file(path)
    found = os.fstat(fd)
    os.close(fd)
    assert (places.look(path).st_dev, places.look(path).st_ino) == (found.st_dev, found.st_ino)
    return found.st_dev, found.st_ino


def test_what_is_missing_is_made_and_noted_by_its_path_without_links(
    places: DirectoryCache, rootfs: Path, tmp_path: Path
) -> None:
    assert file_at(places, "/lib/a") == (os.stat(rootfs).st_dev, os.stat(rootfs / "usr/lib/a").st_ino)
    file_at(places, "/lib/b")
    file_at(places, "/lib/new/c")
    file_at(places, "/d")
    assert noted(tmp_path) == [
        (FILE, "usr/lib/a"),
        (FILE, "usr/lib/b"),
        (DIRECTORY, "usr/lib/new"),
        (FILE, "usr/lib/new/c"),
        (FILE, "d"),
    ]
    assert (rootfs / "usr/lib/b").read_bytes() == b""


def test_what_is_there_is_taken_and_links_are_followed_inside(places: DirectoryCache, rootfs: Path, tmp_path: Path) -> None:
    (rootfs / "usr/lib/mine").write_text("image")
    (rootfs / "usr/lib/link").symlink_to("/usr/lib/mine")
    (rootfs / "usr/lib/dangling").symlink_to("/usr/lib/made")
    (rootfs / "usr/lib/evil").symlink_to(tmp_path / "outside/file")
    mine = os.stat(rootfs / "usr/lib/mine")
    assert file_at(places, "/usr/lib/mine") == file_at(places, "/usr/lib/link") == (mine.st_dev, mine.st_ino)
    file_at(places, "/usr/lib/dangling")
    file_at(places, "/usr/lib/evil")
    assert (rootfs / "usr/lib/made").is_file()
    assert os.listdir(tmp_path / "outside") == []


def test_one_that_another_container_has_made_meanwhile_is_not_ours(
    places: DirectoryCache, rootfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(name: str, mode: int, dir_fd: int) -> None:
        (rootfs / "usr/lib" / name).write_text("theirs")
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(posix, "mknod", too_late)
    assert file_at(places, "/usr/lib/a")[1] == os.stat(rootfs / "usr/lib/a").st_ino
    assert noted(tmp_path) == []


@pytest.mark.parametrize("instead", ["directory", "link", "nothing"])
def test_a_directory_that_was_exchanged_is_told(places: DirectoryCache, rootfs: Path, tmp_path: Path, instead: str) -> None:
    file_at(places, "/usr/lib/a")
    places.renew()
    file_at(places, "/usr/lib/b")
    (rootfs / "usr/lib").rename(tmp_path / "outside/lib")
    if instead == "directory":
        (rootfs / "usr/lib").mkdir()
    elif instead == "link":
        (rootfs / "usr/lib").symlink_to("/usr")
    with pytest.raises(StepError, match="/usr/lib"):
        places.renew()


def test_many_are_noted_in_one_write_before_the_first_is_made(
    places: DirectoryCache, rootfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rootfs / "usr/lib/mine").write_text("image")
    seen: list[int] = []
    write = posix.write

    def counted(fd: int, data: bytes) -> int:
        seen.append(len(os.listdir(rootfs / "usr/lib")))
        return write(fd, data)

    monkeypatch.setattr(posix, "write", counted)
    places.directory("/usr/lib/new")
    seen.clear()
    places.make_all(
        [("/lib/a", None), ("/usr/lib/mine", None), ("/usr/lib/new/b", None), ("/lib/l", "a"), ("/lib/..", None)]
    )
    assert seen == [2], "one write, when there are but the image's file and the directory"
    assert sorted(os.listdir(rootfs / "usr/lib")) == ["a", "l", "mine", "new"]
    assert (rootfs / "usr/lib/mine").read_text() == "image" and os.readlink(rootfs / "usr/lib/l") == "a"
    assert (rootfs / "usr/lib/new/b").is_file() and os.listdir(tmp_path / "outside") == []
    traces = parse((tmp_path / "journal").read_bytes())
    assert [(t.kind, t.path, t.rest) for t in traces] == [
        (DIRECTORY, "usr/lib/new", b""),
        (FILE, "usr/lib/a", b""),
        (FILE, "usr/lib/new/b", b""),
        (LINK, "usr/lib/l", b"a"),
    ]
    assert len({t.stamp for t in traces}) == 4


def test_of_many_one_that_cannot_be_made_is_not_ours(
    places: DirectoryCache, rootfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mknod = posix.mknod

    def too_late(name: str, mode: int, dir_fd: int) -> None:
        if name == "b":
            (rootfs / "usr/lib/b").write_text("theirs")
        mknod(name, mode, dir_fd=dir_fd)

    monkeypatch.setattr(posix, "mknod", too_late)
    (rootfs / "usr/file").write_text("")
    places.make_all([("/usr/lib/a", None), ("/usr/lib/b", None), ("/usr/file/c", None), ("/usr/lib/d", None)])
    assert noted(tmp_path) == [(FILE, "usr/lib/a"), (FILE, "usr/lib/d")]
    assert (rootfs / "usr/lib/b").read_text() == "theirs"


@pytest.mark.parametrize(("call", "wanted"), [("mknod", ("/usr/lib/b", None)), ("symlink", ("/usr/lib/b", "a"))])
def test_of_many_one_that_the_host_cannot_make_is_an_error(
    places: DirectoryCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, wanted: tuple[str, str | None]
) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(posix, call, full)
    full_of = "the file system of /usr/lib/b has no free blocks"
    with pytest.raises(StepError, match=rf"^{call}\(2\) /usr/lib/b: no space left on device: {full_of}"):
        places.make_all([wanted])
    assert noted(tmp_path) == [], "what was not made is not noted"


def test_of_many_a_directory_that_cannot_be_opened_is_an_error(
    places: DirectoryCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(*args: object, **options: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(posix, "open", too_many)
    with pytest.raises(StepError, match=r"^make the directory of /usr/lib/b: too many open files$"):
        places.make_all([("/usr/lib/b", None)])


def test_a_directory_of_ours_has_no_time_to_give_back(places: DirectoryCache, rootfs: Path, tmp_path: Path) -> None:
    os.utime(rootfs / "usr/lib", ns=(0, 0))  # the time that reproducible images have
    file_at(places, "/usr/lib/new/a")
    assert places.journal is not None
    places.journal.close()
    traces = parse((tmp_path / "journal").read_bytes())
    assert [t.path for t in traces if t.kind == TIMES] == ["usr/lib"]
    undo(places.root_fd, traces)
    assert os.listdir(rootfs / "usr/lib") == [] and os.stat(rootfs / "usr/lib").st_mtime_ns == 0


def test_without_a_journal(rootfs: Path) -> None:
    fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
    places = DirectoryCache(fd)
    file_at(places, "/x/y")
    places.close()
    os.close(fd)
    assert (rootfs / "x/y").is_file()


@pytest.mark.parametrize("target", ["/own/new/deep", "/own"])
def test_what_the_check_refuses_is_refused_before_anything_is_made_there(rootfs: Path, tmp_path: Path, target: str) -> None:
    (rootfs / "own").mkdir()
    (rootfs / "dangling").symlink_to(target)
    own = os.stat(rootfs / "own").st_ino

    def check(fd: int, path: str) -> None:
        if os.fstat(fd).st_ino == own:
            raise GpurunError(f"{path}: not there")

    fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
    before = os.listdir("/proc/self/fd")
    places = DirectoryCache(fd, None, check)
    for ask in (
        lambda: places.directory("/dangling"),
        lambda: places.directory("/dangling/below"),
        lambda: places.file("/dangling/file"),
        lambda: places.file("/dangling"),
        lambda: places.point("/dangling", True),
        lambda: places.made("/dangling"),
    ):
        with pytest.raises(GpurunError, match="not there"):
            ask()
    places.close()
    assert os.listdir(rootfs / "own") == [] and os.listdir("/proc/self/fd") == before
    os.close(fd)
