"""The compiled front takes back what was made in a rootfs as the launcher does, and leaves to it what is unusual."""

from __future__ import annotations

import os
import random
import re
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gpurun.builder.front import compiler
from gpurun.hook.image_files import rewrite_in_place
from gpurun.hook.rootfs_target import Target
from gpurun.ns.journal import CANCELLED, DIRECTORY, FILE, LINK, REWRITTEN, ROOTFS, TEMPORARY, TIMES, Journal, append
from gpurun.ns.path import make_dirs, make_target
from tests.launcher.front import FALLS_BACK, Store, run
from tests.native.waiting import wait_until

pytestmark = pytest.mark.skipif(not compiler(), reason="there is no C compiler here")

CACHE = bytes(range(256)) * 300
OURS = b"ours" * 10000
#: A time that directories of the image have, and that comes back to those which only we have changed.
OLD = 1_000_000_007_000_000_009


class Made(NamedTuple):
    """A stopped container ``c`` for which something was made in *rootfs*; *journal* says what."""

    store: Store
    rootfs: Path
    journal: Path


def an_image(rootfs: Path) -> None:
    (rootfs / "etc/ld.so.conf.d").mkdir(parents=True)
    (rootfs / "usr/lib").mkdir(parents=True)
    (rootfs / "etc/ld.so.cache").write_bytes(CACHE)
    (rootfs / "etc/ld.so.cache").chmod(0o4640)
    for path in (*rootfs.rglob("*"), rootfs):
        if not path.is_symlink():
            os.utime(path, ns=(OLD, OLD))


def make_things(journal: Journal, root_fd: int) -> None:
    """All kinds of things, as a container with GPUs has them made."""
    os.close(make_dirs(root_fd, "/usr/lib/nvidia/current", journal))
    for name in ("libcuda.so.1.2", "libnvidia-ml.so.1.2", "empty"):
        os.close(make_target(root_fd, f"/usr/lib/nvidia/current/{name}", False, journal))
    journal.note("file", "etc/socket")
    os.mknod("etc/socket", stat.S_IFSOCK | 0o600, dir_fd=root_fd)
    for path, text in (("usr/lib/nvidia/current/libcuda.so.1", "libcuda.so.1.2"), ("usr/lib/libcuda.so", "nvidia/\xfc")):
        journal.note("link", path, text.encode())
        os.symlink(text.encode(), path.encode(), dir_fd=root_fd)
    journal.note("file", "never")
    journal.cancel()
    target = Target(root_fd, journal)
    assert rewrite_in_place(target, "/etc/ld.so.cache", lambda image: OURS, parents=False)
    assert rewrite_in_place(target, "/etc/ld.so.conf.d/00-gpurun.conf", lambda image: b"/usr/lib/nvidia\n", parents=False)
    target.finish()


def prepare(directory: Path) -> Made:
    with subprocess.Popen(["sleep", "1000"]) as process:
        store = Store(directory, process.pid)
        process.send_signal(signal.SIGKILL)
        wait_until(store.has_ended)
    (store.container / "gpus").write_text("0 1")
    rootfs = directory / "rootfs"
    rootfs.mkdir()
    an_image(rootfs)
    (directory / "outside").mkdir()
    (directory / "outside/file").touch()
    (directory / "outside/link").symlink_to("libcuda.so.1.2")
    return Made(store, rootfs, store.container / "created")


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return prepare(tmp_path / "one")


def create(made: Made) -> Made:
    root_fd = os.open(made.rootfs, os.O_PATH | os.O_DIRECTORY)
    journal = Journal(root_fd, os.open(made.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    append(journal.fd, ROOTFS, str(made.rootfs))
    make_things(journal, root_fd)
    journal.close()
    os.close(root_fd)
    return made


def listing(made: Made) -> list[tuple[str, ...]]:
    """All there is beside the state: names, kinds, modes, content, whether it is the old time and the same file."""
    found = []
    for top in (made.rootfs, made.rootfs.parent / "outside"):
        for path in (top, *top.rglob("*")):
            s = path.lstat()
            content = os.readlink(path) if path.is_symlink() else str(path.read_bytes()) if path.is_file() else ""
            content = content.replace(str(made.rootfs.parent), "DIRECTORY")
            name = re.sub(r"(\.ld\.so\.cache\.).*", r"\1KEPT", str(path.relative_to(made.rootfs.parent)))
            found.append((name, oct(s.st_mode), content, str(s.st_mtime_ns == OLD), f"{s.st_uid} {s.st_gid}"))
    return sorted(found)


def delete(places: Path, made: Made, program: str) -> subprocess.CompletedProcess[str]:
    return run(places / program, "--root", made.store.root, "delete", "c")


def test_everything_goes_and_the_launcher_is_not_needed(places: Path, made: Made) -> None:
    before, cache = listing(made), (made.rootfs / "etc/ld.so.cache").stat().st_ino
    create(made)
    assert len(listing(made)) > len(before) + 8
    done = delete(places, made, "bare")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert listing(made) == before and not made.store.container.exists()
    assert (made.rootfs / "etc/ld.so.cache").stat().st_ino == cache, "the file itself comes back"


def the_rootfs_is_gone(made: Made) -> None:
    made.rootfs.rename(made.rootfs.parent / "elsewhere")
    made.rootfs.write_text("a file")


def by_link(path: str) -> Callable[[Made], None]:
    def change(made: Made) -> None:
        (made.rootfs / path).rename(made.rootfs.parent / "moved")
        (made.rootfs / path).symlink_to(made.rootfs.parent / "outside")

    return change


def again(path: str, content: bytes) -> Callable[[Made], None]:
    def change(made: Made) -> None:
        (made.rootfs / path).write_bytes(content)

    return change


def replaced(path: str, by: Callable[[Path], object]) -> Callable[[Made], None]:
    def change(made: Made) -> None:
        os.unlink(made.rootfs / path)
        by(made.rootfs / path)

    return change


def the_kept_one(by: Callable[[Path], object]) -> Callable[[Made], None]:
    """The image's own file, which is kept beside ours."""

    def change(made: Made) -> None:
        by(next((made.rootfs / "etc").glob(".ld.so.cache.*")))

    return change


def to_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


#: What a container, or somebody beside it, can have changed: whether the front can still do without the launcher.
CHANGES: dict[str, tuple[Callable[[Made], object], bool]] = {
    "nothing": (lambda made: None, True),
    "a file has content": (again("usr/lib/nvidia/current/empty", b"x"), True),
    "a file is a directory": (replaced("usr/lib/nvidia/current/empty", os.mkdir), True),
    "a file is a link": (replaced("usr/lib/nvidia/current/empty", lambda p: os.symlink("/etc/passwd", p)), True),
    "a file is a FIFO": (replaced("usr/lib/nvidia/current/empty", os.mkfifo), True),
    "a file is gone": (replaced("usr/lib/nvidia/current/empty", lambda p: None), True),
    "a directory is used": (again("usr/lib/nvidia/new", b""), True),
    "a link says something else": (replaced("usr/lib/libcuda.so", lambda p: os.symlink("x", p)), True),
    "a link says more": (replaced("usr/lib/libcuda.so", lambda p: os.symlink("nvidia/\xfcx", p)), True),
    "a link is a file": (replaced("usr/lib/libcuda.so", lambda p: p.write_bytes(b"")), True),
    "the cache is written again": (again("etc/ld.so.cache", OURS[:-1] + b"x"), True),
    "the cache is longer": (again("etc/ld.so.cache", OURS + b"x"), True),
    "the cache is shorter": (again("etc/ld.so.cache", OURS[:-1]), True),
    "the cache is empty": (again("etc/ld.so.cache", b""), True),
    "the cache is a FIFO": (replaced("etc/ld.so.cache", os.mkfifo), True),
    "the cache is a link": (replaced("etc/ld.so.cache", lambda p: os.symlink("../outside", p)), True),
    "the cache is gone": (replaced("etc/ld.so.cache", lambda p: None), True),
    "the kept file has changed": (the_kept_one(lambda p: p.write_bytes(CACHE[:-1] + b"x")), False),
    "the kept file is longer": (the_kept_one(lambda p: p.write_bytes(CACHE + b"x")), False),
    "the kept file is shorter": (the_kept_one(lambda p: p.write_bytes(CACHE[:-1])), False),
    "the kept file has another mode": (the_kept_one(lambda p: os.chmod(p, 0o777)), False),
    "the kept file has another time": (the_kept_one(lambda p: os.utime(p)), False),
    "the kept file is a FIFO": (the_kept_one(to_fifo), False),
    "the kept file is gone": (the_kept_one(os.unlink), False),
    "a made directory leads out": (by_link("usr/lib/nvidia/current"), True),
    "a directory of the image leads out": (by_link("usr"), True),
    "the rootfs is gone": (the_rootfs_is_gone, True),
    "a directory has a new time": (lambda made: os.utime(made.rootfs / "etc"), True),
    "a mode of a directory": (lambda made: os.chmod(made.rootfs / "usr/lib/nvidia", 0o700), True),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_others_have_changed(places: Path, tmp_path: Path, name: str) -> None:
    """It stays, and what comes back is the same whoever does it; nothing outside is touched."""
    change, alone = CHANGES[name]
    ends = []
    for program in ("whole", "pure", *(["bare"] if alone else [])):
        made = create(prepare(tmp_path / program))
        change(made)
        done = delete(places, made, program)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert not made.store.container.exists() and not made.store.cgroup.exists()
        ends.append(listing(made))
        outside = [line[0] for line in ends[-1] if line[0].startswith("outside")]
        assert outside == ["outside", "outside/file", "outside/link"]
    assert all(end == ends[0] for end in ends)
    if not alone:
        made = create(prepare(tmp_path / "fallback"))
        change(made)
        done = delete(places, made, "bare")
        assert done.returncode == 1 and done.stderr.startswith(FALLS_BACK), "the front leaves it"
        assert made.journal.exists() and delete(places, made, "pure").returncode == 0
        assert listing(made) == ends[0], "and what it has begun with changes nothing"


@pytest.mark.parametrize("size", [0, 1, 3, 127, 128, 129, 255, 256, 257, 65535, 65536, 65537, 300_001])
def test_our_file_is_recognised_whatever_its_size(places: Path, made: Made, size: int) -> None:
    content = random.Random(size).randbytes(size)
    fd = os.open(made.rootfs, os.O_PATH | os.O_DIRECTORY)
    journal = Journal(fd, os.open(made.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    append(journal.fd, ROOTFS, str(made.rootfs))
    before = listing(made)
    assert rewrite_in_place(Target(fd, journal), "/etc/ld.so.cache", lambda image: content, parents=False)
    assert rewrite_in_place(Target(fd, journal), "/etc/new", lambda image: content, parents=False)
    journal.close()
    os.close(fd)
    assert delete(places, made, "bare").returncode == 0
    assert listing(made) == before


# What is left to the launcher, untouched.


def left(places: Path, made: Made) -> None:
    before, state = listing(made), made.store.listing()
    done = delete(places, made, "bare")
    assert done.returncode == 1 and done.stderr.startswith(FALLS_BACK) and done.stdout == ""
    assert listing(made) == before
    assert [line for line in made.store.listing() if not line[0].endswith(".created.lock")] == state


def test_another_container_has_the_rootfs(places: Path, made: Made) -> None:
    """Its mounts would go with the mount points: it gets the journal."""
    create(made)
    other = made.store.root / "d"
    other.mkdir()
    (made.rootfs.parent / "by-another-name").symlink_to(made.rootfs)
    fd = os.open(other / "created", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    append(fd, ROOTFS, str(made.rootfs.parent / "by-another-name"))
    os.close(fd)
    left(places, made)
    assert delete(places, made, "whole").returncode == 0
    assert b"libcuda.so.1.2" in (other / "created").read_bytes() and (made.rootfs / "usr/lib/libcuda.so").is_symlink()


def test_other_containers_have_others(places: Path, made: Made) -> None:
    before = listing(made)
    create(made)
    for name, rootfs in (("d", "/"), ("e", "/nowhere"), ("f", str(made.rootfs.parent)), ("g", "")):
        (made.store.root / name).mkdir()
        if rootfs:
            fd = os.open(made.store.root / name / "created", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            append(fd, ROOTFS, rootfs)
            append(fd, FILE, "x")
            os.close(fd)
    (made.store.root / "a-file").touch()
    assert delete(places, made, "bare").returncode == 0
    assert listing(made) == before


@pytest.mark.parametrize("theirs", [b"", b"7:rootfs\0", b"x", b"9:rootfs\0001\0,"])
def test_a_journal_beside_it_that_cannot_be_read(places: Path, made: Made, theirs: bytes) -> None:
    create(made)
    (made.store.root / "d").mkdir()
    (made.store.root / "d/created").write_bytes(theirs)
    left(places, made)


@pytest.mark.parametrize(
    ("kind", "path", "rest"),
    [
        ("unknown", "x", b""),
        (FILE, "usr/..", b""),
        (FILE, "usr/", b""),
        (FILE, ".", b""),
        (TIMES, "usr", b"1"),
        (TIMES, "usr", b"1 2 3"),
        (TIMES, "usr", b"1 " + b"9" * 30),
        (REWRITTEN, "etc/ld.so.cache", b"00\0-\0"),
        (REWRITTEN, "etc/ld.so.cache", b"0" * 64 + b"\0-"),
        (REWRITTEN, "etc/ld.so.cache", b"0" * 64 + b"\x001 2 3 4\0old"),
        (REWRITTEN, "etc/ld.so.cache", b"0" * 64 + b"\x001 2 3 4 \0"),
        (CANCELLED, "", b"x"),
        (ROOTFS, "/", b""),
    ],
)
def test_records_that_are_none_of_its(places: Path, made: Made, kind: str, path: str, rest: bytes) -> None:
    create(made)
    fd = os.open(made.journal, os.O_WRONLY | os.O_APPEND)
    append(fd, kind, path, rest)
    os.close(fd)
    left(places, made)


def test_older_records_after_newer_ones(places: Path, made: Made) -> None:
    """They are another container's, which has left them to this one."""
    create(made)
    fd = os.open(made.journal, os.O_WRONLY | os.O_APPEND)
    append(fd, FILE, "etc/x", stamp=1)
    os.close(fd)
    left(places, made)


@pytest.mark.parametrize("size", [0, 1, 20, -1])
def test_a_journal_that_is_not_whole(places: Path, made: Made, size: int) -> None:
    create(made)
    data = made.journal.read_bytes()
    made.journal.write_bytes(data[:size])
    left(places, made)


def test_a_path_that_leads_out_is_nobodys(places: Path, made: Made) -> None:
    """A damaged journal can name anything: what is not in the rootfs is not found."""
    (made.rootfs / "loop").symlink_to("/")
    fd = os.open(made.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    append(fd, ROOTFS, str(made.rootfs))
    for directory in (
        "../outside",
        "usr/../../outside",
        str(made.rootfs.parent / "outside"),
        f"loop{made.rootfs.parent}/outside",
    ):
        append(fd, FILE, f"{directory}/file")
        append(fd, TEMPORARY, f"{directory}/file")
        append(fd, LINK, f"{directory}/link", b"libcuda.so.1.2")
        append(fd, DIRECTORY, directory)
        append(fd, TIMES, directory, b"1 %d" % (made.rootfs.parent / "outside").stat().st_mtime_ns)
    os.close(fd)
    before = listing(made)
    assert delete(places, made, "bare").returncode == 0
    assert listing(made) == before


def test_any_bytes_for_a_journal(places: Path, made: Made) -> None:
    """Hundreds of damaged journals: done or left, never an access outside of the buffers, never a step out of the rootfs."""
    program = places / "checked"
    if not program.exists():
        pytest.skip("the compiler has no sanitizers")
    create(made)
    good = made.journal.read_bytes()
    saved = (made.store.container / "state").read_bytes()
    seed = random.Random(11)
    words = [
        b"\0",
        b":",
        b",",
        b"9" * 30,
        b"-1 ",
        b"/..",
        b"../outside/file",
        b"rootfs",
        b"times",
        b"12:",
        b"\xff" * 300,
        b"",
    ]
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(seed.randrange(1, 4)):
            at = seed.randrange(len(bad) + 1)
            bad[at : at + seed.randrange(0, 6)] = seed.choice(words)
        made.store.container.mkdir(exist_ok=True)
        made.store.cgroup.mkdir(exist_ok=True)
        (made.store.container / "state").write_bytes(saved)
        (made.store.container / "config.json").write_text("{}")
        made.journal.write_bytes(bytes(bad))
        done = subprocess.run([program, "--root", made.store.root, "delete", "c"], capture_output=True, timeout=60, env={})
        assert done.returncode in (0, 1), (done.stderr, bytes(bad))
        assert done.returncode == 0 or done.stderr.startswith(FALLS_BACK.encode()), (done.stderr, bytes(bad))
        assert sorted(p.name for p in (made.rootfs.parent / "outside").iterdir()) == ["file", "link"]
