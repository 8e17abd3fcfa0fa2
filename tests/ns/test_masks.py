"""Masked and read-only paths, in a mount namespace of the test's own."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.linux.mount import MS_BIND, mount
from gpurun.ns.masks import mask_paths, null_cover, readonly_paths, repair_masks
from tests.fixtures import InNamespace


@pytest.fixture
def image(rootfs: Path) -> Path:
    """A root, as it is after pivot_root a mount of its own, with files, a directory, and links to them."""
    for name in ("etc/one", "etc/two", "usr/keep", "etc/sub/file"):
        (rootfs / name).parent.mkdir(exist_ok=True)
        (rootfs / name).write_text("seen")
    (rootfs / "usr/sub").mkdir()
    (rootfs / "etc/link").symlink_to("/usr/keep")
    return rootfs


def inside(image: Path) -> int:
    mount(str(image), str(image), "", MS_BIND)
    return os.open(image, os.O_PATH)


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as e:
        return errno.errorcode[e.errno or 0]


def write(path: Path) -> str:
    try:
        path.write_text("changed")
        return "written"
    except OSError as e:
        return errno.errorcode[e.errno or 0]


def covers(path: Path) -> list[tuple[str, bool]]:
    """(file system, whether the mount has peers or a master) of each mount at *path*."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [(line[line.index("-") + 1], line[6] != "-") for line in lines if line[4] == str(path)]


def test_masks(in_mount_namespace: InNamespace[Any], image: Path) -> None:
    """Files are empty devices, directories empty and read-only; what is not there is passed over; nothing stays open."""

    def look() -> tuple[Any, ...]:
        root, before = inside(image), os.listdir("/proc/self/fd")
        cover = null_cover({})
        names = ("/etc/one", "/etc/sub", "/etc/two", "/etc/link", "/none", "/etc/one/below", "/usr/sub", "/usr/sub/none")
        mask_paths(root, {}, names, cover)
        etc = image / "etc"
        files = [(read(path), write(path), read(path)) for path in (etc / "one", etc / "two", image / "usr/keep")]
        folders = [(os.listdir(path), write(path / "new")) for path in (etc / "sub", image / "usr/sub")]
        kinds = [covers(path) for path in (etc / "one", etc / "sub", image / "usr/keep", image / "usr/sub")]
        return files, folders, kinds, len(os.listdir("/proc/self/fd")) - len(before)

    files, folders, kinds, opened = in_mount_namespace(look)
    assert files == [("", "written", "")] * 3 and folders == [([], "EROFS")] * 2 and opened == 0
    assert [[kind for kind, _ in found] for found in kinds][1::2] == [["tmpfs"]] * 2
    assert [len(found) for found in kinds] == [1] * 4 and not any(peers for found in kinds for _, peers in found)
    assert {path.read_text() for path in (image / "etc/one", image / "usr/keep", image / "etc/sub/file")} == {"seen"}


def test_a_mask_is_the_containers_own_null_where_it_has_one(in_mount_namespace: InNamespace[Any], image: Path) -> None:
    """A device that is not the null device, or a link to one, is not taken: then it is the host's."""

    def device_of(make: Any) -> tuple[bool, str]:
        mount("tmpfs", str(image / "dev"), "tmpfs", 0)
        make(image / "dev/null")
        view = os.open(image / "dev", os.O_PATH)
        cover = null_cover({"/dev": view})
        found = os.fstat(cover)
        try:
            os.chmod(f"/proc/self/fd/{cover}", 0o600)
            changed = "changed"
        except OSError as e:
            changed = errno.errorcode[e.errno or 0]
        return found.st_dev == os.fstat(view).st_dev and os.major(found.st_rdev) == 1, changed

    makers = {
        "null": lambda path: os.mknod(path, 0o020666, os.makedev(1, 3)),
        "zero": lambda path: os.mknod(path, 0o020666, os.makedev(1, 5)),
        "link": lambda path: path.symlink_to("/dev/null"),
        "none": lambda path: None,
    }
    for name, make in makers.items():
        assert in_mount_namespace(partial(device_of, make)) == (name == "null", "EROFS"), name


def test_paths_in_proc_are_those_of_its_mount(in_mount_namespace: InNamespace[Any], image: Path) -> None:
    """Somebody exchanges the rootfs's own directory: the mask is on the mount, by the nearest view; ".." has none."""

    def look() -> tuple[str, ...]:
        root = inside(image)
        for name in ("view", "nearer"):
            (image / name).mkdir()
            mount("tmpfs", str(image / name), "tmpfs", 0)
            for file in ("hidden", "sub"):
                (image / name / file).write_text("seen")
        (image / "proc/hidden").write_text("seen")
        views = {"/proc": os.open(image / "view", os.O_PATH), "/proc/near": os.open(image / "nearer", os.O_PATH)}
        paths = ("/proc/hidden", "/proc/near/hidden", "/usr/../proc/hidden", "/proc/../etc/one", "/processes")
        mask_paths(root, views, paths, null_cover({}))
        return tuple([read(image / name) for name in ("view/hidden", "nearer/hidden", "proc/hidden", "etc/one", "etc/two")])

    assert in_mount_namespace(look) == ("", "", "", "", "seen")


def test_read_only_paths(in_mount_namespace: InNamespace[Any], image: Path) -> None:
    """What is mounted below comes along, and can be written as before, as with runc."""

    def look() -> tuple[Any, ...]:
        root, before = inside(image), os.listdir("/proc/self/fd")
        mount("tmpfs", str(image / "usr/sub"), "tmpfs", 0)
        readonly_paths(root, {}, ("/etc/one", "/usr", "/none"))
        names = ("etc/one", "etc/two", "usr/keep", "usr/new", "usr/sub/new")
        some = [write(image / name) for name in names]
        readonly_paths(root, {}, ("/",))
        return some, write(image / "etc/two"), len(os.listdir("/proc/self/fd")) - len(before), len(covers(image))

    some, all_of_it, opened, mounts = in_mount_namespace(look)
    assert (some, all_of_it, opened) == (["EROFS", "written", "EROFS", "EROFS", "written"], "EROFS", 0)
    assert mounts == 1, "the root has no bind of itself on it, which its processes would be below"


def test_another_mount_of_the_rootfs_is_not_its_root(in_mount_namespace: InNamespace[Any], image: Path) -> None:
    """The same directory, mounted once more below: that mount is made read-only, and the root stays as it is."""

    def look() -> tuple[str, str]:
        root = inside(image)
        mount(str(image), str(image / "usr/sub"), "", MS_BIND)
        readonly_paths(root, {}, ("/usr/sub",))
        return write(image / "usr/sub/etc/one"), write(image / "etc/two")

    assert in_mount_namespace(look) == ("EROFS", "written")


@pytest.mark.parametrize("call", ["mask", "make read-only", "repair"])
def test_what_cannot_be_looked_up_is_an_error(in_mount_namespace: InNamespace[Any], image: Path, call: str) -> None:
    (image / "circle").symlink_to("circle")

    def look() -> None:
        root = inside(image)
        if call == "mask":
            mask_paths(root, {}, ("/circle",), null_cover({}))
        elif call == "repair":
            repair_masks(root, ("/circle",))
        else:
            readonly_paths(root, {}, ("/circle",))

    step = "mask" if call == "repair" else call
    with pytest.raises(GpurunError, match=f"{step} /circle: too many levels of symbolic links"):
        in_mount_namespace(look)


def test_masks_are_made_again_what_they_were(in_mount_namespace: InNamespace[Any], image: Path) -> None:
    """Of CRIU's binds the first alone is read-only; a node of the container's own is none, and files are not touched."""

    def look() -> tuple[Any, ...]:
        root = inside(image)
        mount("/dev/null", str(image / "etc/one"), "", MS_BIND)
        os.mknod(image / "etc/null", 0o020666, os.makedev(1, 3))
        repair_masks(root, ("/none", "/etc/null", "/etc/two", "/etc/one"))
        try:
            os.chmod(image / "etc/one", 0o666)
            return "changed", covers(image / "etc/one")[-1][1]
        except OSError as e:
            return errno.errorcode[e.errno or 0], covers(image / "etc/one")[-1][1]

    assert in_mount_namespace(look) == ("EROFS", False)
