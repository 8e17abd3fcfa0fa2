"""Paths in a rootfs: what is resolved, made and refused, whatever the image has there (no root needed)."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.linux.fs import O_NOFOLLOW, RESOLVE_NO_SYMLINKS
from gpurun.ns.journal import Journal, parse
from gpurun.ns.path import (
    existing_part,
    in_root,
    make_dirs,
    make_symlink,
    make_target,
    open_file,
    open_in_root,
    path_in_root,
    refuse_kernels_own,
    reopen,
)

pytestmark = pytest.mark.usefixtures("nothing_stays_open")


@pytest.fixture
def nothing_stays_open() -> Iterator[None]:
    """Fails the test that leaves a descriptor, of an error or of a success."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def root_fd(nothing_stays_open: None, rootfs: Path) -> Iterator[int]:
    """A rootfs with links of every kind: relative, absolute, dangling, upwards, in a circle; outside stands a secret."""
    (rootfs.parent / "secret").write_text("of the host")
    for name, text in {
        "rel": "usr/bin", "abs": "/usr/bin", "up": "../../../../usr/bin", "deep": "usr/no/such", "absdeep": "/usr/no/such",
        "out": "../secret", "circle": "circle", "tofile": "etc/file", "usr/back": "../etc",
        "usr/bin/absdeep": "/etc/no",
    }.items():  # fmt: skip
        (rootfs / name).symlink_to(text)
    (rootfs / "etc/file").write_text("of the image")
    fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def fails(number: int, path: str, call: Callable[[], int]) -> None:
    with pytest.raises(OSError) as caught:
        os.close(call())
    assert (caught.value.errno, caught.value.filename) == (number, path)


def resolved(rootfs: Path, fd: int) -> str:
    """Where *fd*, which is closed, is in the rootfs; a path of the host for what is outside."""
    found = os.readlink(f"/proc/self/fd/{fd}")
    os.close(fd)
    return found.removeprefix(str(rootfs))


@pytest.mark.parametrize(
    ("path", "made"),
    [
        ("/usr/bin", "/usr/bin"),
        ("/", ""),
        ("/etc/./new//sub/", "/etc/new/sub"),
        ("/rel/new", "/usr/bin/new"),
        ("/abs/new", "/usr/bin/new"),
        ("/up/new", "/usr/bin/new"),
        ("/deep/new", "/usr/no/such/new"),
        ("/usr/back/new", "/etc/new"),
        ("/usr/bin/../lib/new", "/usr/lib/new"),
        ("/absdeep", "/usr/no/such"),
        ("/usr/bin/absdeep/new", "/etc/no/new"),
        ("/../../new", "/new"),
    ],
)
@pytest.mark.parametrize("directory", [True, False])
def test_what_is_made(root_fd: int, rootfs: Path, path: str, made: str, directory: bool) -> None:
    fd = make_dirs(root_fd, path) if directory else make_target(root_fd, path, False)
    assert resolved(rootfs, fd) == made
    mode = 0o40755 if directory or path in ("/", "/usr/bin") else 0o100644  # what is there stays what it is
    assert os.stat(f"{rootfs}{made}").st_mode == mode


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("/etc/file/below", errno.ENOTDIR),
        ("/tofile/below", errno.ENOTDIR),
        ("/circle/new", errno.ELOOP),
        ("/usr/none/../new", errno.ENOENT),
        (f"/{'x' * 300}", errno.ENAMETOOLONG),
    ],
)
def test_what_cannot_be_made(root_fd: int, rootfs: Path, path: str, number: int) -> None:
    before = sorted(rootfs.rglob("*"))
    fails(number, path, lambda: make_dirs(root_fd, path))
    fails(number, path, lambda: make_target(root_fd, path, False))
    assert sorted(rootfs.rglob("*")) == before


@pytest.mark.parametrize(("links", "number"), [(40, 0), (41, errno.ELOOP)])
def test_as_many_links_as_the_kernel_follows(root_fd: int, rootfs: Path, links: int, number: int) -> None:
    for i in range(links):
        (rootfs / f"link{i}").symlink_to(f"link{i + 1}" if i + 1 < links else "the/end")
    if number:
        fails(number, "/link0", lambda: make_dirs(root_fd, "/link0"))
    else:
        assert resolved(rootfs, make_dirs(root_fd, "/link0")) == "/the/end"


def test_a_link_out_of_the_image_leads_into_it(root_fd: int, rootfs: Path) -> None:
    fails(errno.ENOENT, "/out", lambda: open_in_root(root_fd, "/out"))
    assert resolved(rootfs, make_target(root_fd, "/out", False)) == "/secret"
    assert (rootfs.parent / "secret").read_text() == "of the host" and (rootfs / "secret").read_text() == ""


def test_what_is_there_is_taken_as_it_is(root_fd: int, rootfs: Path) -> None:
    for path in ("/etc/file", "/tofile"):
        assert resolved(rootfs, make_target(root_fd, path, directory=True)) == "/etc/file"
    fails(errno.ENOTDIR, "/etc/file", lambda: make_dirs(root_fd, "/etc/file"))
    assert (rootfs / "etc/file").read_text() == "of the image"


@pytest.mark.parametrize("directory", [True, False])
def test_who_must_not_make_anything_is_asked_before(root_fd: int, rootfs: Path, directory: bool) -> None:
    asked = []

    def check(fd: int, path: str) -> None:
        asked.append((os.readlink(f"/proc/self/fd/{fd}").removeprefix(str(rootfs)), path))
        raise PermissionError(errno.EPERM, "", path)

    fails(errno.EPERM, "/rel/a/b", lambda: make_target(root_fd, "/rel/a/b", directory, check=check))
    assert asked == [("/usr/bin", "/rel/a/b")] and not (rootfs / "usr/bin/a").exists()


@pytest.mark.parametrize(
    ("there", "of_directory", "of_file"),
    [
        ("directory", "/etc/new", "/etc/new"),
        ("file", errno.ENOTDIR, "/etc/new"),
        ("link", errno.ENOTDIR, "/etc/new"),  # itself, and not what it leads to
        ("gone", errno.ENOENT, errno.ENOENT),
    ],
)
@pytest.mark.parametrize("directory", [True, False])
def test_somebody_else_is_faster(
    root_fd: int, rootfs: Path, tmp_path: Path, there: str, of_directory: object, of_file: object, directory: bool
) -> None:
    """What stands there by then is not followed, not written, and not noted as ours."""
    place = rootfs / "etc/new"

    def meanwhile(_: int, path: str) -> None:
        if there == "directory":
            place.mkdir(0o700)
        elif there == "file":
            place.write_text("theirs")
        elif there == "link":
            place.symlink_to("../usr/bin")
        else:
            place.parent.rename(tmp_path / "away")
            (tmp_path / "away/file").unlink()
            (tmp_path / "away").rmdir()

    noted = os.open(tmp_path / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    journal = Journal(root_fd, noted)
    expected = of_directory if directory else of_file

    def make() -> int:
        return make_target(root_fd, "/etc/new", directory, journal, meanwhile)

    if isinstance(expected, int):
        fails(expected, "/etc/new", make)
    else:
        assert resolved(rootfs, make()) == expected
    journal.close()
    left = {"directory": 0o40700, "file": 0o100644, "link": 0o120777}.get(there)
    assert left == (place.lstat().st_mode if os.path.lexists(place) else None)
    assert there != "file" or place.read_text() == "theirs"
    assert parse((tmp_path / "journal").read_bytes()) == ()


def test_a_descriptor_is_opened_anew_through_the_procfs_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "17/fd").mkdir(parents=True)
    (tmp_path / "self").symlink_to("17")
    (tmp_path / "17/fd/5").write_text("by that one")
    for given in (os.open(tmp_path, os.O_PATH), os.open(tmp_path, os.O_RDONLY)):
        with open(reopen(5, os.O_RDONLY, given)) as file:
            assert file.read() == "by that one"
        os.close(given)


def test_no_link_of_proc_is_followed(tmp_path: Path) -> None:
    """In a rootfs whose /proc is the host's, such a link leads to a file of any other root."""
    with open(tmp_path / "secret", "w+") as secret:
        root_fd, path = os.open("/", os.O_PATH), f"/proc/self/fd/{secret.fileno()}"
        fails(errno.ELOOP, path, lambda: open_in_root(root_fd, path))
        os.close(root_fd)


def test_files_alone_are_opened(root_fd: int, rootfs: Path) -> None:
    """A FIFO would block, a socket fail, and a link of /proc lead anywhere."""
    os.mkfifo(rootfs / "fifo")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(rootfs / "socket"))
    assert [open_file(root_fd, name) for name in ("/fifo", "/socket", "/etc", "/")] == [-1] * 4
    with open(open_file(root_fd, "/tofile")) as file:
        assert file.read() == "of the image"
    assert open_file(root_fd, "/tofile", O_NOFOLLOW) == -1, "the link itself, which is no file"
    fails(errno.ELOOP, "/tofile", lambda: open_file(root_fd, "/tofile", 0, RESOLVE_NO_SYMLINKS))
    fails(errno.ENOENT, "/none", lambda: open_file(root_fd, "/none"))


@pytest.mark.parametrize(
    ("path", "directory", "missing"),
    [
        ("/usr/bin/x", "usr/bin", "x"),
        ("/rel/a/b/c", "usr/bin", "a"),
        ("/deep/x", "usr", "no"),
        ("/new", "", "new"),
        ("/etc/file", "etc", "file"),
    ],
)
def test_how_far_a_path_exists(root_fd: int, rootfs: Path, path: str, directory: str, missing: str) -> None:
    fd, found, name = existing_part(root_fd, path)
    assert (found, name, resolved(rootfs, fd).lstrip("/")) == (directory, missing, directory)


def test_links_are_made_once(root_fd: int, rootfs: Path) -> None:
    for _ in range(2):
        make_symlink(root_fd, "/rel/lib.so", "lib.so.1")
    assert os.readlink(rootfs / "usr/bin/lib.so") == "lib.so.1"
    for path, text in (("/usr/bin/lib.so", "lib.so.2"), ("/etc/file", "x")):
        with pytest.raises(FileExistsError) as caught:
            make_symlink(root_fd, path, text)
        assert caught.value.filename == path
    make_symlink(root_fd, "/top", "x")
    assert os.readlink(rootfs / "top") == "x"


def test_where_a_descriptor_is(root_fd: int, rootfs: Path) -> None:
    beside = rootfs.parent / "rootfs-of-another"
    beside.mkdir()
    opened = [os.open(place, os.O_PATH) for place in (rootfs / "usr/bin", rootfs, beside)]
    try:
        assert [path_in_root(root_fd, fd, "x") for fd in opened[:2]] == ["usr/bin/x", "x"]
        assert [in_root(str(rootfs), fd) for fd in opened] == [True, True, False]
        assert in_root("/", opened[2]) and in_root(f"{rootfs}/", opened[0])
    finally:
        for fd in opened:
            os.close(fd)


def test_the_kernels_own_files_are_no_place(root_fd: int, rootfs: Path) -> None:
    for place, path, refused in (("/proc", "/proc/x", 0), ("/sys", "/sys/x", 0), ("/proc", "/etc/x", 1), (rootfs, "/x", 0)):
        fd = os.open(place, os.O_PATH)
        try:
            if refused:
                with pytest.raises(GpurunError, match=f"^{path}: a symbolic link in the image leads into /proc or /sys"):
                    refuse_kernels_own(fd, path)
            else:
                refuse_kernels_own(fd, path)
        finally:
            os.close(fd)
