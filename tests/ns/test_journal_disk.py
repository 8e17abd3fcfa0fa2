"""What a machine that stopped has left in a rootfs: the next create and delete take it back, and believe nobody else.

A boot is what it leaves: the state directory and the processes are gone, and the journal is of another boot_id.
"""

from __future__ import annotations

import itertools
import os
import posix
import shutil
from collections.abc import Callable
from errno import EBUSY
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError, Stays
from gpurun.linux.files import mkdir_p
from gpurun.linux.procfs import boot_id
from gpurun.ns import journal_disk
from gpurun.ns.journal import Journal
from gpurun.ns.journal_store import forget_orphan, open_journal, undo_earlier_boots, undo_traces
from gpurun.ns.path import make_dirs, make_target

EARLIER = "00000000-0000-4000-8000-000000000000"


class Host:
    """A state root and a rootfs; the journals are below *kept*."""

    def __init__(self, directory: Path) -> None:
        self.root, self.rootfs, self.kept = directory / "run", directory / "rootfs", directory / "journals"
        (self.rootfs / "etc").mkdir(parents=True)
        self.root.mkdir()

    def create(self, name: str = "c", file: str = "usr/lib/libcuda.so.1") -> Path:
        """As create makes things for devices; the journal."""
        (self.root / name).mkdir(exist_ok=True)
        fd = os.open(self.rootfs, os.O_PATH | os.O_DIRECTORY)
        journal = Journal(fd, open_journal(str(self.root), name, str(self.rootfs)))
        os.close(make_dirs(fd, os.path.dirname(file), journal))
        os.close(make_target(fd, f"/{file}", False, journal))
        journal.close()
        os.close(fd)
        return self.root / name / "created"

    def boot(self) -> None:
        """The machine stops and starts again."""
        shutil.rmtree(self.root)
        self.root.mkdir()
        now = self.kept / boot_id()
        (self.kept / EARLIER).mkdir(0o700, exist_ok=True)
        for journal in now.iterdir():
            journal.rename(self.kept / EARLIER / journal.name)
        now.rmdir()

    def files(self) -> list[str]:
        return sorted(str(p.relative_to(self.rootfs)) for p in self.rootfs.rglob("*"))

    def journals(self) -> list[Path]:
        return [p for p in self.kept.rglob("*") if p.is_file()] if self.kept.exists() else []


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setattr(journal_disk, "directories", lambda: (str(made.kept),))
    return made


def test_the_next_create_takes_it_back(host: Host) -> None:
    host.create()
    assert undo_earlier_boots(str(host.rootfs)) == () and "usr/lib/libcuda.so.1" in host.files(), "not in the same boot"
    host.boot()
    assert undo_earlier_boots(str(host.rootfs)) == ()
    assert host.files() == ["etc"] and host.journals() == [] and not host.kept.exists()


def test_delete_takes_it_back_by_the_id_alone(host: Host) -> None:
    host.create()
    host.boot()
    assert undo_earlier_boots("", (str(host.root), "other")) == () and len(host.files()) > 1
    assert undo_earlier_boots("", (str(host.root), "c")) == ()
    assert host.files() == ["etc"] and host.journals() == []


def test_a_state_root_that_outlives_the_boot(host: Host) -> None:
    created = host.create()
    text = os.readlink(created)
    host_now = next(host.kept.iterdir())
    host_now.rename(host.kept / EARLIER)
    created.unlink()
    created.symlink_to(text.replace(host_now.name, EARLIER))
    undo_traces(str(host.root), "c")
    assert host.files() == ["etc"] and not os.path.lexists(created) and host.journals() == []


def test_delete_after_another_create_has_undone_it(host: Host) -> None:
    created = host.create()
    host.journals()[0].unlink()
    assert undo_traces(str(host.root), "c") == () and os.path.lexists(created)


def test_two_containers_that_had_one_rootfs(host: Host) -> None:
    """What one has made in the other's directory goes first, though the journals are two."""
    host.create("a", "usr/lib/one")
    host.create("b", "usr/lib/two")
    host.boot()
    undo_earlier_boots(str(host.rootfs))
    assert host.files() == ["etc"] and host.journals() == []


def test_a_container_of_this_boot_keeps_its_mount_points(host: Host) -> None:
    host.create("a", "usr/lib/one")
    host.boot()
    host.create("b", "usr/lib/two")
    assert undo_earlier_boots(str(host.rootfs)) == ()
    assert "usr/lib/one" in host.files()
    undo_traces(str(host.root), "b")
    undo_earlier_boots(str(host.rootfs))
    assert host.files() == ["etc"]


def test_another_image_at_the_path_is_left_alone(host: Host) -> None:
    host.create()
    host.boot()
    host.rootfs.rename(host.rootfs.parent / "the-one-before")
    (host.rootfs / "usr/lib").mkdir(parents=True)
    (host.rootfs / "usr/lib/libcuda.so.1").touch()
    undo_earlier_boots("", (str(host.root), "c"))
    assert host.journals(), "delete does not know whether the rootfs will be mounted there again"
    undo_earlier_boots(str(host.rootfs))
    assert "usr/lib/libcuda.so.1" in host.files() and host.journals() == []


@pytest.mark.parametrize("size", [0, 1, 40, -1, -30])
def test_a_journal_that_was_cut_off(host: Host, size: int) -> None:
    """What its whole records say goes; nothing of the image's does."""
    host.create()
    host.boot()
    (journal,) = host.journals()
    journal.write_bytes(journal.read_bytes()[:size])
    undo_earlier_boots(str(host.rootfs))
    assert "etc" in host.files() and host.journals() == []


@pytest.mark.parametrize("by", ["mode", "owner", "link", "fifo", "file"])
def test_what_another_user_could_have_written_is_not_believed(host: Host, by: str, tmp_path: Path) -> None:
    host.create()
    host.boot()
    (journal,) = host.journals()
    if by == "mode":
        host.kept.chmod(0o777)
    elif by == "owner":
        if os.geteuid():
            pytest.skip("needs root")
        os.chown(journal.parent, 1000, 1000)
    elif by == "link":
        journal.rename(tmp_path / "elsewhere")
        journal.symlink_to(tmp_path / "elsewhere")
    elif by == "fifo":
        journal.unlink()
        os.mkfifo(journal)
    else:
        if os.geteuid():
            pytest.skip("needs root")
        os.chown(journal, 1000, 1000)
    before = host.files()
    assert undo_earlier_boots(str(host.rootfs)) == ()
    assert host.files() == before and len(before) > 1


@pytest.mark.parametrize("failing", ["mkdir_p", "write_all"])
def test_without_room_the_journal_is_in_the_state_directory(
    host: Host, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A read-only host, a full disk."""
    from gpurun.ns import journal_store

    once = iter([True])

    def full(*args: object) -> None:
        if failing == "write_all" and not next(once, False):
            os.write(args[0], args[1])  # type: ignore[arg-type]
            return
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_disk if failing == "mkdir_p" else journal_store, failing, full)
    created = host.create()
    assert created.is_file() and not created.is_symlink() and host.journals() == []
    undo_traces(str(host.root), "c")
    assert host.files() == ["etc"]


def test_what_cannot_be_taken_back_now_is_told_and_tried_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.create()
    host.boot()
    unlink = posix.unlink

    def refused(path: str, **more: int) -> None:
        raise OSError(30, "Read-only file system") if path == "libcuda.so.1" else OSError(1, "Operation not permitted")

    monkeypatch.setattr(posix, "unlink", refused)
    (said,) = undo_earlier_boots(str(host.rootfs))[:1]
    assert f"the rootfs {host.rootfs} keeps /usr/lib/libcuda.so.1" in said and "read-only" in said
    monkeypatch.setattr(posix, "unlink", unlink)
    assert undo_earlier_boots(str(host.rootfs)) == () and host.files() == ["etc"]


def test_killed_at_each_step_of_undoing(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed while he takes back leaves it to the next one."""
    for step in range(1, 100):
        host.create()
        host.boot()
        pid = os.fork()
        if pid == 0:
            left = iter(range(step - 1))
            for name in ("unlink", "rmdir", "utime"):
                monkeypatch.setattr(posix, name, _ended_after(getattr(posix, name), left))
            undo_earlier_boots(str(host.rootfs))
            os._exit(0)
        done = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        undo_earlier_boots(str(host.rootfs))
        assert host.files() == ["etc"] and host.journals() == [], step
        if done == 0:
            break
    assert 3 < step < 99


def _ended_after(call: Callable[..., object], left: object) -> Callable[..., object]:
    def counted(*args: object, **more: object) -> object:
        if next(left, None) is None:  # type: ignore[call-overload]
            os._exit(9)
        return call(*args, **more)

    return counted


def test_journals_of_rootfs_that_never_come_again_are_bounded(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_disk, "MAX_EARLIER", 3)
    host.create()
    host.boot()
    for number in range(5):
        (host.kept / EARLIER / f"{number}.x").touch(0o600)
        os.utime(host.kept / EARLIER / f"{number}.x", (number, number))
    undo_earlier_boots(str(host.rootfs))
    assert sorted(p.name for p in host.journals()) == ["2.x", "3.x", "4.x"]


def test_the_last_journal_takes_its_directories_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a create that comes between makes them again."""
    place = tmp_path / "journals"
    monkeypatch.setattr(journal_disk, "directories", lambda: (str(place),))
    (tmp_path / "rootfs").mkdir()
    one, two = (journal_disk.places("/run/gpurun", name, str(tmp_path / "rootfs"))[0] for name in ("a", "b"))
    assert journal_disk.make_file(one) and journal_disk.make_file(two)
    journal_disk.remove(one)
    assert place.is_dir()
    journal_disk.remove(two)
    assert not place.exists()
    removed: list[str] = []

    def removed_meanwhile(path: str, mode: int) -> None:
        mkdir_p(path, mode)
        if not removed:
            removed.append(path)
            os.rmdir(path)

    monkeypatch.setattr(journal_disk, "mkdir_p", removed_meanwhile)
    assert journal_disk.make_file(one) and os.path.isfile(one) and removed


@pytest.mark.parametrize("failing", ["journal", "journal, forced", "link", "readlink"])
def test_a_journal_that_cannot_be_removed(host: Host, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """What it tells of has been taken back all the same; the next delete removes it."""
    before = host.files()
    directory = host.create().parent
    other = host.create("other", "usr/lib/another")

    name = failing if failing == "readlink" else "unlink"
    real = getattr(posix, name)

    def refused(path: str) -> Any:
        if path.endswith("/undone") is not ("link" in failing):
            return real(path)
        raise OSError(EBUSY, "")

    with monkeypatch.context() as broken:
        broken.setattr(posix, name, refused)
        if failing == "journal, forced":
            (warning,) = undo_traces(str(host.root), "c", force=True)
            assert isinstance(warning, Stays) and warning.endswith("device or resource busy")
            shutil.rmtree(directory)
        else:
            with pytest.raises(GpurunError if failing == "journal" else OSError):
                undo_traces(str(host.root), "c")
    assert len(host.journals()) == (1 if failing == "link" else 2)
    forget_orphan(str(host.root), "other")  # is no orphan
    if directory.exists():
        assert undo_traces(str(host.root), "c", whole=True) == () and not any(directory.iterdir())
    else:
        forget_orphan(str(host.root), "c")
    assert host.journals() == [Path(os.readlink(other))]
    undo_traces(str(host.root), "other")
    assert host.files() == before


@pytest.mark.parametrize("at", ["rename", "unlink", "rmdir"])
def test_killed_while_the_journal_goes(host: Host, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """The next delete does not take the journal for lost."""
    before = host.files()
    directory = host.create().parent
    for number in range(3):
        calls = itertools.count()
        real = getattr(posix, at)

        def killed(*args: Any, real: Any = real, calls: Any = calls, number: int = number, **how: Any) -> None:
            real(*args, **how)
            if next(calls) == number:
                raise KeyboardInterrupt

        with monkeypatch.context() as broken:
            broken.setattr(posix, at, killed)
            try:
                undo_traces(str(host.root), "c", whole=True)
            except KeyboardInterrupt:
                pass
        assert undo_traces(str(host.root), "c", whole=True) == ()
        assert host.files() == before and host.journals() == [] and not any(directory.iterdir())
        host.create()


@pytest.mark.parametrize("at", ["symlink", "open", "write"])
def test_killed_while_the_journal_is_made(host: Host, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Delete leaves no journal: it finds one by its link in the state directory."""
    real, number, stopped = getattr(posix, at), 0, True
    while stopped:
        calls, stopped = itertools.count(), False

        def killed(*args: Any, calls: Any = calls, number: int = number, **how: Any) -> Any:
            made = real(*args, **how)
            if next(calls) == number:
                raise KeyboardInterrupt
            return made

        (host.root / "c").mkdir()
        with monkeypatch.context() as broken:
            broken.setattr(posix, at, killed)
            try:
                os.close(open_journal(str(host.root), "c", str(host.rootfs)))
            except KeyboardInterrupt:
                stopped = True
        undo_traces(str(host.root), "c", force=True)
        shutil.rmtree(host.root / "c")
        assert host.journals() == [], f"killed after {at} number {number}"
        number += 1
    assert number > 1
