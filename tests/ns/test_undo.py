"""Taking back what a journal says: what is told apart from the container's own, what is left open, what is tried again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.ns.journal import DIRECTORY, FILE, LINK, REWRITTEN, TEMPORARY, TIMES, Original, Trace, pack_rewritten
from gpurun.ns.undo import digest, undo

OURS = b"ours"


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    return tmp_path / "rootfs"


@pytest.fixture
def root_fd(rootfs: Path) -> Iterator[int]:
    fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def rewritten(original: Original, path: str = "etc/c", stamp: int = 2) -> Trace:
    return Trace(REWRITTEN, stamp, path, pack_rewritten(digest(OURS), original))


def kept_beside(rootfs: Path, content: bytes = b"the image's", mtime: int = 10**18) -> Original:
    """The file that was etc/c, under the name under which it is kept; ours is in its place."""
    path = rootfs / "etc/.c.kept"
    path.write_bytes(content)
    path.chmod(0o640)
    found = path.stat()
    (rootfs / "etc/c").write_bytes(OURS)
    return Original(content, 0o640, found.st_uid, found.st_gid, mtime, found.st_ino, ".c.kept")


@pytest.mark.parametrize(("there", "goes"), [("ours", True), ("another", False), ("file", False), ("directory", False)])
def test_a_link_goes_if_it_is_ours(root_fd: int, rootfs: Path, there: str, goes: bool) -> None:
    path = rootfs / "etc/link"
    if there == "file":
        path.touch()
    elif there == "directory":
        path.mkdir()
    else:
        path.symlink_to("target" if there == "ours" else "elsewhere")
    assert undo(root_fd, (Trace(LINK, 1, "etc/link", b"target"),)) == ()
    assert os.path.lexists(path) is not goes


@pytest.mark.parametrize(("there", "goes"), [("empty", True), ("fifo", True), ("full", False), ("link", False)])
def test_a_mount_point_goes_if_nobody_wrote_to_it(root_fd: int, rootfs: Path, there: str, goes: bool) -> None:
    path = rootfs / "etc/file"
    if there == "fifo":
        os.mkfifo(path)
    elif there == "link":
        path.symlink_to("c")
    else:
        path.write_text("of the container" if there == "full" else "")
    assert undo(root_fd, (Trace(FILE, 1, "etc/file"),)) == ()
    assert os.path.lexists(path) is not goes


def test_nothing_is_left_open(root_fd: int, rootfs: Path) -> None:
    original = kept_beside(rootfs)
    for name in ("a", "b"):
        (rootfs / name).mkdir()
        (rootfs / name / "x").touch()
    moment = (rootfs / "a").stat().st_mtime_ns
    traces = (
        Trace(DIRECTORY, 1, "gone/x"),
        Trace(FILE, 2, "a/x"),
        rewritten(original),
        Trace(FILE, 4, "b/x"),
        Trace(TIMES, 5, "a", b"%d %d" % (10**18, moment)),
        Trace(TIMES, 6, "b", b"1 2"),  # somebody else has changed it since
        Trace(TIMES, 7, "gone", b"1 2"),
    )
    before = os.listdir("/proc/self/fd")
    assert undo(root_fd, traces) == ()
    assert os.listdir("/proc/self/fd") == before
    assert [*(rootfs / "a").iterdir(), *(rootfs / "b").iterdir()] == []
    assert (rootfs / "a").stat().st_mtime_ns == 10**18


def test_a_kept_file_has_its_time_again(root_fd: int, rootfs: Path) -> None:
    """Reading it may have been what the container did last; its time is written down."""
    original = kept_beside(rootfs)
    assert (rootfs / "etc/.c.kept").stat().st_mtime_ns != original.mtime
    assert undo(root_fd, (rewritten(original),)) == ()
    found = (rootfs / "etc/c").stat()
    assert (found.st_ino, found.st_mtime_ns) == (original.inode, original.mtime)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_kept_file_of_another_owner_is_not_the_original(root_fd: int, rootfs: Path) -> None:
    original = kept_beside(rootfs)
    os.chown(rootfs / "etc/.c.kept", 1234, 1234)
    assert undo(root_fd, (rewritten(original),)) == ()
    found = (rootfs / "etc/c").stat()
    assert found.st_ino != original.inode and (found.st_uid, found.st_gid) == (original.uid, original.gid)
    assert (rootfs / "etc/c").read_bytes() == original.content


@pytest.mark.parametrize("call", ["fchmod", "utime", "rename"])
def test_a_new_file_that_cannot_be_finished_is_not_left(
    root_fd: int, rootfs: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "")

    (rootfs / "etc/c").write_bytes(OURS)
    trace = rewritten(Original(b"the image's", 0o600, os.geteuid(), os.getegid(), 10**18))
    with monkeypatch.context() as broken:
        broken.setattr(f"gpurun.ns.undo.posix.{call}", fails)
        (left,) = undo(root_fd, (trace,))
    assert str(left) == "/etc/c: input/output error" and not left.refused
    assert os.listdir(rootfs / "etc") == ["c"] and (rootfs / "etc/c").read_bytes() == OURS
    assert undo(root_fd, (trace,)) == () and (rootfs / "etc/c").read_bytes() == b"the image's"


def test_a_time_that_cannot_be_given_back_is_told(root_fd: int, rootfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "")

    moment = (rootfs / "etc").stat().st_mtime_ns
    monkeypatch.setattr("gpurun.ns.undo.posix.utime", fails)
    (left,) = undo(root_fd, (Trace(TIMES, 1, "etc", b"%d %d" % (5, moment)),))
    assert (left.path, left.reason, left.refused) == ("etc", "read-only file system", True)


@pytest.mark.parametrize("directory", ["", "etc/"])
def test_the_only_copy_of_the_original_stays_until_it_is_back(
    root_fd: int, rootfs: Path, monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "")

    original = kept_beside(rootfs)
    for name in ("c", ".c.kept"):
        os.rename(rootfs / "etc" / name, rootfs / directory / name)
    traces = (Trace(TEMPORARY, 1, f"{directory}.c.kept"), rewritten(original, f"{directory}c"))
    with monkeypatch.context() as broken:
        broken.setattr("gpurun.ns.undo.posix.rename", fails)
        assert [left.path for left in undo(root_fd, traces)] == [f"{directory}c"]
    assert (rootfs / directory / ".c.kept").read_bytes() == original.content
    assert undo(root_fd, traces) == ()
    assert (rootfs / directory / "c").stat().st_ino == original.inode
    assert not (rootfs / directory / ".c.kept").exists()


@pytest.mark.parametrize(("there", "goes"), [("empty", True), ("full", False), ("file", False), ("link", False)])
def test_a_directory_goes_if_nothing_is_in_it(root_fd: int, rootfs: Path, there: str, goes: bool) -> None:
    path = rootfs / "etc/made"
    if there == "file":
        path.touch()
    elif there == "link":
        path.symlink_to(rootfs / "etc")
    else:
        path.mkdir()
        if there == "full":
            (path / "of-the-container").touch()
    assert undo(root_fd, (Trace(DIRECTORY, 1, "etc/made"),)) == ()
    assert os.path.lexists(path) is not goes


@pytest.mark.parametrize(("there", "goes"), [("file", True), ("link", False), ("directory", False)])
def test_a_temporary_file_goes_whatever_is_in_it(root_fd: int, rootfs: Path, there: str, goes: bool) -> None:
    path = rootfs / "etc/.new"
    if there == "link":
        path.symlink_to("elsewhere")
    elif there == "directory":
        path.mkdir()
    else:
        path.write_text("half")
    assert undo(root_fd, (Trace(TEMPORARY, 1, "etc/.new"),)) == ()
    assert os.path.lexists(path) is not goes


def test_a_rewritten_file_where_none_was_goes(root_fd: int, rootfs: Path) -> None:
    """But not what the container has written in its place."""
    for content, goes in ((OURS, True), (b"another", False), (OURS + b"!", False)):
        (rootfs / "etc/c").write_bytes(content)
        assert undo(root_fd, (rewritten(Original(None)),)) == ()
        assert (rootfs / "etc/c").exists() is not goes


@pytest.mark.parametrize("kept", ["", ".c.gone"])
def test_without_the_kept_file_its_content_comes_back(root_fd: int, rootfs: Path, kept: str) -> None:
    (rootfs / "etc/c").write_bytes(OURS)
    original = Original(b"the image's", 0o4750, os.geteuid(), os.getegid(), 10**18, 1, kept)
    assert undo(root_fd, (rewritten(original),)) == ()
    found = (rootfs / "etc/c").stat()
    assert (rootfs / "etc/c").read_bytes() == b"the image's" and found.st_mtime_ns == 10**18
    assert found.st_mode & 0o7777 == 0o750, "set-user-id is not given to a file that may have another owner"
    assert [path.name for path in (rootfs / "etc").iterdir()] == ["c"]


def test_names_that_lead_elsewhere_are_not_followed(root_fd: int, rootfs: Path) -> None:
    (rootfs / "etc/file").touch()
    traces = (Trace(FILE, 1, "etc/.."), Trace(FILE, 2, "etc/."), Trace(FILE, 3, "etc/"), Trace(DIRECTORY, 4, "etc/.."))
    assert undo(root_fd, (Trace(FILE, 0, "etc/file"), *traces)) == (), "and those before them are undone all the same"
    assert not (rootfs / "etc/file").exists() and (rootfs / "etc").is_dir()
