"""Masked and read-only paths, in a mount namespace of the test's own."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.linux.mount import MOUNT_ATTR_RDONLY, MS_BIND, mount
from gpurun.ns import masks
from gpurun.ns.masks import mask_paths, null_cover, readonly_paths, repair_masks
from gpurun.ns.mount import filesystem as mount_of
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
    """A device that is not the null device, a link to one, or another mount is not taken: then it is the host's."""
    other = image / "etc/other"
    os.mknod(other, 0o020666, os.makedev(1, 3))

    def device_of(make: Any) -> tuple[str, str]:
        hosts = os.stat("/dev/null")
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
        return "own" if found.st_dev == os.fstat(view).st_dev else "host" if os.path.samestat(found, hosts) else "", changed

    def mounted(path: Path) -> None:
        path.touch()
        mount(str(other), str(path), "", MS_BIND)

    def beside(path: Path) -> None:
        os.mknod(path.with_name("other"), 0o020666, os.makedev(1, 3))
        path.symlink_to("other")

    makers = {
        "null": lambda path: os.mknod(path, 0o020666, os.makedev(1, 3)),
        "zero": lambda path: os.mknod(path, 0o020666, os.makedev(1, 5)),
        "link": lambda path: path.symlink_to("/dev/null"),
        "beside": beside,
        "mounted": mounted,
        "none": lambda path: None,
    }
    for name, make in makers.items():
        assert in_mount_namespace(partial(device_of, make)) == ("own" if name == "null" else "host", "EROFS"), name


def test_no_file_is_a_mask_where_there_is_no_null_device(in_mount_namespace: InNamespace[Any], image: Path) -> None:
    def look() -> tuple[str, int]:
        mount(str(image / "etc/one"), "/dev/null", "", MS_BIND)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(GpurunError) as error:
            null_cover({})
        return str(error.value), len(os.listdir("/proc/self/fd")) - before

    assert in_mount_namespace(look) == ("/dev/null is not the null device: masked files cannot be hidden behind it", 0)


@pytest.mark.parametrize(("label", "context"), [("system_u:object_r:x:s0", True), ("", False)])
def test_a_masked_directory_has_the_label_of_the_container(
    in_mount_namespace: InNamespace[Any], image: Path, monkeypatch: pytest.MonkeyPatch, label: str, context: bool
) -> None:
    """Whether the kernel has SELinux or not: the option is seen on its way there."""

    def look() -> list[Any]:
        asked: list[Any] = []

        def seen(kind: str, options: tuple[tuple[str, str | None], ...], *more: Any) -> int:
            asked.append((kind, [value for name, value in options if name == "context"], *more[:1]))
            return mount_of(kind, tuple([one for one in options if one[0] != "context"]), *more)

        monkeypatch.setattr(masks, "filesystem", seen)
        mask_paths(inside(image), {}, ("/etc/sub", "/usr/sub"), null_cover({}), label)
        return asked

    assert in_mount_namespace(look) == [("tmpfs", [label] if context else [], MOUNT_ATTR_RDONLY)]


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


@pytest.mark.parametrize("name", ["/", "/etc/..", "/etc/top"])
def test_read_only_paths(in_mount_namespace: InNamespace[Any], image: Path, name: str) -> None:
    """What is mounted below comes along, and can be written as before, as with runc; the root by any *name* is itself."""
    (image / "etc/top").symlink_to("/")

    def look() -> tuple[Any, ...]:
        root, before = inside(image), os.listdir("/proc/self/fd")
        mount("tmpfs", str(image / "usr/sub"), "tmpfs", 0)
        readonly_paths(root, {}, ("/etc/one", "/usr", "/none"))
        names = ("etc/one", "etc/two", "usr/keep", "usr/new", "usr/sub/new")
        some = [write(image / name) for name in names]
        readonly_paths(root, {}, (name,))
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
        mount(str(image / "usr/keep"), str(image / "etc/sub/file"), "", MS_BIND)
        repair_masks(root, ("/none", "/etc/null", "/etc/two", "/etc/one", "/etc/sub/file"))
        assert write(image / "etc/sub/file") == "written", "what the container has mounted over its mask is its own"
        try:
            os.chmod(image / "etc/one", 0o666)
            return "changed", covers(image / "etc/one")[-1][1]
        except OSError as e:
            return errno.errorcode[e.errno or 0], covers(image / "etc/one")[-1][1]

    assert in_mount_namespace(look) == ("EROFS", False)
