"""Taking back what a journal says: what is told apart from the container's own, what is left open, what is tried again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpurun.ns.journal import DIRECTORY, FILE, LINK, REWRITTEN, TEMPORARY, TIMES, Original, Trace, pack_rewritten
from gpurun.ns.undo import digest, undo

OURS = b"ours"


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


def test_what_is_there_at_another_kinds_name_stays(root_fd: int, rootfs: Path) -> None:
    """A kind that this version does not know removes nothing, nor do the records that make nothing."""
    (rootfs / "etc/file").touch()
    traces = [Trace(kind, 1, "etc/file", b"1 2") for kind in ("rootfs", "times", "cancelled", "of a later version")]
    assert undo(root_fd, tuple(traces)) == () and (rootfs / "etc/file").exists()


@pytest.mark.parametrize("name", [b"caf\xc3\xa9", b"\xff\xfe"])
def test_a_link_of_any_bytes_is_ours(root_fd: int, rootfs: Path, name: bytes) -> None:
    os.symlink(name, bytes(rootfs / "etc/link"))
    assert undo(root_fd, (Trace(LINK, 1, "etc/link", name),)) == ()
    assert not os.path.lexists(rootfs / "etc/link")


def test_only_the_original_of_what_could_not_be_given_back_stays(
    root_fd: int, rootfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = kept_beside(rootfs)
    for name in (".other", "target"):
        (rootfs / "etc" / name).touch()
    made = [Trace(TEMPORARY, 1, "etc/.c.kept"), Trace(TEMPORARY, 2, "etc/.other"), Trace(FILE, 3, "etc/target")]

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "")

    with monkeypatch.context() as broken:
        broken.setattr("gpurun.ns.undo.posix.rename", fails)
        assert [left.path for left in undo(root_fd, (*made, rewritten(original, stamp=4)))] == ["etc/c"]
    assert sorted(path.name for path in (rootfs / "etc").iterdir()) == [".c.kept", "c"]


def test_times_that_cannot_be_looked_at_are_told(root_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is undone: it can be tried again, with the times."""

    def fails(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "")

    monkeypatch.setattr("gpurun.ns.undo.openat2", fails)
    (left,) = undo(root_fd, (Trace(TIMES, 1, "etc", b"1 2"), Trace(FILE, 2, "etc/x")))
    assert (left.path, left.reason, left.refused) == ("", "too many open files", False)


def test_descriptors_of_any_number(root_fd: int, rootfs: Path) -> None:
    """A directory and a file may be opened as descriptor 0, in a process that was started without its streams."""
    for name in ("a", "b", "c"):
        (rootfs / name).mkdir()
        (rootfs / name / "x").touch()
    moment = (rootfs / "b").stat().st_mtime_ns
    (rootfs / "etc/c").write_bytes(OURS)
    traces = (
        Trace(FILE, 1, "a/x"), Trace(FILE, 2, "b/x"), rewritten(Original(None)), Trace(FILE, 4, "c/x"),
    )  # fmt: skip
    for with_times in (False, True):  # without them the first that is opened is a directory, with them a time's
        times = (Trace(TIMES, 5, "b", b"%d %d" % (10**18, moment)),) if with_times else ()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(0)
                before = set(os.listdir("/proc/self/fd"))
                left = undo(root_fd, times or traces)
                os._exit(0 if left == () and set(os.listdir("/proc/self/fd")) == before else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        moment = (rootfs / "b").stat().st_mtime_ns
    assert [path for name in ("a", "b", "c", "etc") for path in (rootfs / name).iterdir()] == []
    assert (rootfs / "b").stat().st_mtime_ns == 10**18


def test_names_that_lead_elsewhere_are_not_followed(root_fd: int, rootfs: Path) -> None:
    (rootfs / "etc/file").touch()
    traces = (Trace(FILE, 1, "etc/.."), Trace(FILE, 2, "etc/."), Trace(FILE, 3, "etc/"), Trace(DIRECTORY, 4, "etc/.."))
    assert undo(root_fd, (Trace(FILE, 0, "etc/file"), *traces)) == (), "and those before them are undone all the same"
    assert not (rootfs / "etc/file").exists() and (rootfs / "etc").is_dir()
