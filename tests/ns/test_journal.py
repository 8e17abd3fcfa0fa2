"""The journal of what is made in a rootfs, and taking it back: cut at any byte, changed by others, shared."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from pathlib import Path

import pytest

from gpurun.ns.journal import (
    DIRECTORY,
    FILE,
    LINK,
    REWRITTEN,
    ROOTFS,
    TEMPORARY,
    TIMES,
    Journal,
    Original,
    Trace,
    append,
    is_whole,
    pack,
    pack_rewritten,
    parse,
    unpack_rewritten,
)
from gpurun.ns.path import make_dirs, make_target
from gpurun.ns.undo import digest, undo


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


def test_many_notes_in_one_write_can_each_be_cancelled(journal: Journal, tmp_path: Path) -> None:
    stamps = journal.note_all([(FILE, f"{name}/x", b"") for name in ("etc", "nowhere", "etc/../etc", "")])
    assert stamps[1] == 0 and len(set(stamps)) == 4, "what is not of the image is not written down"
    assert seen(parse(text(tmp_path))) == [(FILE, "etc/x"), (FILE, "etc/../etc/x"), (FILE, "/x")]
    journal.cancel(stamps[0])
    journal.cancel(stamps[1])
    assert seen(parse(text(tmp_path))) == [(FILE, "etc/../etc/x"), (FILE, "/x")]
    assert Journal(journal.root_fd).note_all([(FILE, "etc/x", b"")]) == [0], "nobody is to undo it"


def test_a_note_is_cancelled_once_and_a_journal_closed_once(journal: Journal, tmp_path: Path) -> None:
    journal.note(FILE, "etc/a")
    journal.cancel()
    length = len(text(tmp_path))
    journal.cancel()
    assert len(text(tmp_path)) == length
    fd = journal.fd
    journal.close()
    journal.close()
    assert journal.fd == -1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_every_cut_gives_a_beginning_of_the_whole(journal: Journal, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        journal.note(REWRITTEN, f"etc/{name}", pack_rewritten(b"\1" * 32, Original(b"12:x,\0", 0o600, 1, 2, 3)))
    data = text(tmp_path)
    whole = parse(data)
    assert [unpack_rewritten(t.rest)[1].content for t in whole] == [b"12:x,\0"] * 3
    for n in range(len(data)):
        assert parse(data[:n]) == whole[: len(parse(data[:n]))]


def test_whole_whoever_the_records_came_from(journal: Journal, tmp_path: Path) -> None:
    """What another container of the rootfs has left to this one was made before this one's first record."""
    journal.note(FILE, "etc/theirs")
    theirs, ours = text(tmp_path), pack(ROOTFS, "/rootfs")
    assert is_whole(ours + theirs) and not is_whole(theirs + ours), "the first record of the file says whose it is"
    assert not is_whole((ours + theirs)[:-1]) and not is_whole(b"")


@pytest.mark.parametrize("data", [b"", b"x", b"99999999999999999999:", b"3:abc,", b"8:a\0b\0c\0dd,", b"-1:,", b"5"])
def test_what_is_no_journal_is_empty(data: bytes) -> None:
    assert parse(data) == ()


def test_a_note_stands_there_before_the_thing(journal: Journal, root_fd: int, tmp_path: Path, rootfs: Path) -> None:
    """mkdir(2) fails here, after the note: the note must have been taken back, not left out."""
    rootfs.joinpath("etc/f").write_text("")
    before = sorted(os.listdir(rootfs))
    with pytest.raises(NotADirectoryError):
        make_dirs(root_fd, "/etc/f/x", journal)
    os.close(make_target(root_fd, "/a/b/c", False, journal))
    assert seen(parse(text(tmp_path))) == [(DIRECTORY, "a"), (DIRECTORY, "a/b"), (FILE, "a/b/c")]
    assert undo(root_fd, parse(text(tmp_path))) == ()
    assert sorted(os.listdir(rootfs)) == before


def rewritten(ours: bytes, original: Original, path: str = "etc/c") -> tuple[Trace, ...]:
    return (Trace(REWRITTEN, 1, path, pack_rewritten(digest(ours), original)),)


@pytest.mark.parametrize("place", ["link", "mount", "gone", "file"])
def test_what_is_not_of_the_image_is_not_written_down(journal: Journal, tmp_path: Path, rootfs: Path, place: str) -> None:
    """It goes with the container, or is somebody else's: undoing would look for it in another place."""
    if place == "link":
        (rootfs / "there").symlink_to("etc")
    elif place == "mount":
        (rootfs / "there").mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", rootfs / "there"], capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip("mounts need root")
    elif place == "file":
        (rootfs / "there").touch()
    try:
        journal.note(FILE, "there/x")
        assert journal.note_all([(FILE, "there/x", b""), (FILE, "there/y", b"")]) == [0, 0]
        journal.cancel()
        journal.finish_directory("there/made")
        journal.note(FILE, "etc/x")
        assert not journal.in_image("there")
    finally:
        if place == "mount":
            subprocess.run(["umount", rootfs / "there"], check=True)
    journal.close()
    assert seen(parse(text(tmp_path))) == [(FILE, "etc/x")]


def test_without_a_file_nothing_is_written_down(root_fd: int, rootfs: Path) -> None:
    """Nothing is looked at either: whoever keeps no journal may have a rootfs that he cannot open."""
    before = os.listdir("/proc/self/fd")
    none = Journal(root_fd)
    none.note(FILE, "etc/x")
    assert none.note_all([(FILE, "etc/x", b"")]) == [0]
    none.cancel()
    none.finish_directory("etc/made")
    none.close()
    assert os.listdir("/proc/self/fd") == before and none._directories == {}


def test_the_file_may_have_any_number(root_fd: int, rootfs: Path, tmp_path: Path) -> None:
    """Also 0, in a process that was started without its streams."""
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open(tmp_path / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 0)
            made = Journal(root_fd, 0)
            made.note(FILE, "etc/x")
            made.note_all([(FILE, "etc/y", b"")])
            made.note(DIRECTORY, "etc/made")
            made.finish_directory("etc/made")
            (rootfs / "etc/x").touch()
            (rootfs / "etc/made").mkdir()
            made.note(FILE, "etc/made/z")
            (rootfs / "etc/made/z").touch()
            made.close()
            os._exit(0 if made.fd == -1 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert seen(parse(text(tmp_path))) == [
        (FILE, "etc/x"), (FILE, "etc/y"), (DIRECTORY, "etc/made"), (FILE, "etc/made/z"), (TIMES, "etc"),
    ]  # fmt: skip


def test_the_time_of_a_directory_of_our_own_is_not_written_down(journal: Journal, root_fd: int, tmp_path: Path) -> None:
    """Undoing removes it; its time is nobody's."""
    os.close(make_target(root_fd, "/etc/made/deep/x", False, journal))
    journal.close()
    assert seen(parse(text(tmp_path))) == [
        (DIRECTORY, "etc/made"), (DIRECTORY, "etc/made/deep"), (FILE, "etc/made/deep/x"), (TIMES, "etc"),
    ]  # fmt: skip


def test_a_time_before_1970_comes_back(journal: Journal, root_fd: int, rootfs: Path, tmp_path: Path) -> None:
    os.utime(rootfs / "etc", ns=(0, 0))
    os.close(make_target(root_fd, "/etc/x", False, journal))
    journal.close()
    assert undo(root_fd, parse(text(tmp_path))) == ()
    assert (rootfs / "etc").stat().st_mtime_ns == 0 and [*(rootfs / "etc").iterdir()] == []


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


def keep(rootfs: Path, mode: int = 0o640) -> Original:
    """What a journal says of etc/c, which is kept as etc/.c.kept and has been replaced."""
    (rootfs / "etc/.c.kept").write_bytes(b"theirs")
    (rootfs / "etc/.c.kept").chmod(mode)
    os.utime(rootfs / "etc/.c.kept", ns=(7, 1_000_000_007))
    found = (rootfs / "etc/.c.kept").stat()
    (rootfs / "etc/c").write_bytes(b"ours")
    return Original(b"theirs", mode, found.st_uid, found.st_gid, found.st_mtime_ns, found.st_ino, ".c.kept")


def test_a_kept_file_comes_back_itself(root_fd: int, rootfs: Path) -> None:
    original = keep(rootfs, 0o4755)
    assert undo(root_fd, rewritten(b"ours", original)) == ()
    found = (rootfs / "etc/c").stat()
    assert (found.st_ino, found.st_mode & 0o7777, found.st_mtime_ns) == (original.inode, 0o4755, 1_000_000_007)
    assert os.listdir(rootfs / "etc") == ["c"]


@pytest.mark.parametrize("change", ["content", "mode", "another file", "link", "fifo", "gone", "old record"])
def test_a_kept_file_that_was_changed_comes_back_by_its_content(root_fd: int, rootfs: Path, change: str) -> None:
    """In a file that runs as nobody, however the original did: it is not the file that its owner has marked."""
    original = keep(rootfs, 0o6755)
    kept = rootfs / "etc/.c.kept"
    if change == "content":
        kept.write_bytes(b"evil!!")
    elif change == "mode":
        kept.chmod(0o777)
    else:
        kept.rename(rootfs / "elsewhere")
    if change == "another file":
        kept.write_bytes(b"theirs")
        kept.chmod(0o6755)
    elif change == "link":
        kept.symlink_to(rootfs / "elsewhere")
    elif change == "fifo":
        os.mkfifo(kept)
    records = (Trace(TEMPORARY, 1, "etc/.c.kept"), *rewritten(b"ours", original))
    if change == "old record":
        records = rewritten(b"ours", original)
        old = records[0].rest.replace(b" %d .c.kept\0" % original.inode, b"\0")
        assert old != records[0].rest
        records = (Trace(REWRITTEN, 1, "etc/c", old),)
    assert undo(root_fd, records) == ()
    assert (rootfs / "etc/c").read_bytes() == b"theirs"
    assert (rootfs / "etc/c").stat().st_mode & 0o7777 == 0o755
    assert (rootfs / "etc/c").stat().st_mtime_ns == 1_000_000_007
    assert sorted(os.listdir(rootfs / "etc")) == [*([".c.kept"] if change in ("link", "fifo") else []), "c"]


def test_the_owner_is_that_of_the_file_that_was_read(root_fd: int, rootfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody exchanges the file between looking and opening: what comes back is theirs, and never runs as root."""
    if os.geteuid() != 0:
        pytest.skip("gives files away")
    path = rootfs / "etc/c"
    path.write_bytes(b"ours")
    lstat = os.lstat

    def look(name: str, dir_fd: int) -> os.stat_result:
        found = lstat(name, dir_fd=dir_fd)
        path.rename(rootfs / "before")
        path.write_bytes(b"ours")
        os.chown(path, 1000, 1000)
        return found

    with monkeypatch.context() as patched:
        patched.setattr("posix.lstat", look)
        assert undo(root_fd, rewritten(b"ours", Original(b"theirs", 0o4755, -1, -1))) == ()
    found = path.stat()
    assert (path.read_bytes(), found.st_uid, found.st_mode & 0o7777) == (b"theirs", 1000, 0o755)


@pytest.mark.parametrize("call", ["rename", "lstat", "fstat", "open", "unlink"])
def test_what_fails_is_told_and_can_be_tried_again(
    journal: Journal, root_fd: int, rootfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    os.utime(rootfs / "etc", ns=(10**18, 10**18))
    os.close(make_target(root_fd, "/etc/mountpoint", False, journal))
    journal.note(TEMPORARY, "etc/.c.kept")
    original = keep(rootfs)
    journal.note(REWRITTEN, "etc/c", pack_rewritten(digest(b"ours"), original))
    journal.close()
    with monkeypatch.context() as patched:

        def fail(*args: object, **options: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patched.setattr(f"posix.{call}", fail)
        kept = undo(root_fd, parse(text(tmp_path)))
    assert kept and all(one.reason == "input/output error" and not one.refused for one in kept)
    assert undo(root_fd, parse(text(tmp_path))) == ()
    assert os.listdir(rootfs / "etc") == ["c"]
    assert (rootfs / "etc/c").stat().st_ino == original.inode
    assert (rootfs / "etc").stat().st_mtime_ns == 10**18


def test_no_descriptor_left_is_no_reason_to_forget(journal: Journal, root_fd: int, rootfs: Path, tmp_path: Path) -> None:
    before = sorted(os.listdir(rootfs))
    os.close(make_target(root_fd, "/a/b", False, journal))
    traces = parse(text(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(root_fd)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        kept = undo(root_fd, traces)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [str(one) for one in kept] == ["/a/b: too many open files", "/a: too many open files"]
    assert undo(root_fd, traces) == ()
    assert sorted(os.listdir(rootfs)) == before


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


@pytest.mark.parametrize("room", [0, 1, 7, 20])
def test_a_note_that_does_not_fit(journal: Journal, tmp_path: Path, room: int) -> None:
    """The disk is full within a record: nothing of it stays, and what is noted when there is room again is read."""
    append(journal.fd, ROOTFS, "/rootfs")
    size = os.fstat(journal.fd).st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, limits[1]))  # Python ignores SIGXFSZ
    try:
        for note in (lambda: journal.note(FILE, "etc/file"), lambda: journal.note_all([(LINK, "etc/a", b"x" * 100)])):
            with pytest.raises(OSError, match="File too large"):
                note()
            assert os.fstat(journal.fd).st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    journal.note(FILE, "etc/later")
    assert [(trace.kind, trace.path) for trace in parse(text(tmp_path))] == [(ROOTFS, "/rootfs"), (FILE, "etc/later")]


def test_half_a_note_with_another_behind_it(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process has appended meanwhile is not cut off."""
    write = os.write
    calls = 0

    def failing(fd: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return write(fd, data[:4])
        other = os.open(tmp_path / "journal", os.O_WRONLY | os.O_APPEND)
        write(other, b"theirs")
        os.close(other)
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr("posix.write", failing)
    with pytest.raises(OSError, match="28"):
        journal.note(FILE, "etc/file")
    assert text(tmp_path).endswith(b"theirs")
