"""Overlays as Podman's image mounts and volumes ask for them, and options that are longer than fsconfig(2) takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

#: fsconfig(2) takes this many bytes of a value, mount(2) a page of all options together.
FSCONFIG_BYTES, PAGE_BYTES = 255, 4096
READ = "cat /mnt/first; cat /mnt/last; cat /mnt/all; grep ' /mnt ' /proc/mounts | cut -d' ' -f3; echo new >/mnt/new"

KERNEL = tuple(int(number) for number in os.uname().release.split("-")[0].split(".")[:2])

Layers = Callable[[int, int, str], list[Path]]


@pytest.fixture
def layers(runtime: Runtime) -> Layers:
    """``layers(n, bytes, where)``: n directories whose paths have so many bytes, uppermost first."""

    def make(count: int, length: int, where: str = "each") -> list[Path]:
        found = []
        parent = runtime.directory / "layers"
        if where == "parent":  # most of the path is what they have in common
            while len(str(parent)) + 60 < length:
                parent /= "p" * min(200, length - len(str(parent)) - 50)
        for number in range(count):
            path = parent / f"{number:03d}"
            path = path.with_name(path.name.ljust(length - len(str(path)) + 3, "x"))
            path.mkdir(parents=True)
            (path / "all").write_text(f"layer {number}\n")
            found.append(path)
        (found[0] / "first").write_text("of the first\n")
        (found[-1] / "last").write_text("of the last\n")
        assert {len(str(path)) for path in found} == {length}
        return found

    return make


def overlay(bundle: Bundle, lower: list[Path], upper: Path) -> Bundle:
    """*bundle* with an overlay at /mnt of *lower*, its changes going to a directory below *upper*."""
    (upper / "work").mkdir(parents=True)
    (upper / "upper").mkdir()
    (bundle.rootfs / "mnt").mkdir()
    lowerdir = "lowerdir=" + ":".join(str(path).replace("\\", "\\\\").replace(":", "\\:") for path in lower)
    return bundle.mount("/mnt", "overlay", lowerdir, f"upperdir={upper}/upper", f"workdir={upper}/work", kind="overlay")


def check(runtime: Runtime, b: Bundle, upper: Path) -> None:
    assert runtime.output(b.sh(READ)) == "of the first\nof the last\nlayer 0\noverlay\n"
    assert (upper / "upper/new").read_text() == "new\n"


@pytest.mark.takes("fsconfig", "the options of an overlay must fit one page")
@pytest.mark.not_on("runc", reason="gives mount(2) more than a page")
@pytest.mark.skipif(KERNEL < (6, 7), reason="this kernel has no lowerdir+")
@pytest.mark.parametrize("user_namespace", [False, True])
def test_many_layers_of_long_paths(runtime: Runtime, bundle: MakeBundle, layers: Layers, user_namespace: bool) -> None:
    """No single path is too long for fsconfig(2): each is a lowerdir+ of its own, which Linux has since 6.7."""
    upper = runtime.directory / "changes"
    b = overlay(bundle(), layers(128, 240, "each"), upper)
    if user_namespace:
        b.user_namespace()
        for path in (upper / "upper", upper / "work"):
            path.chmod(0o777)
    check(runtime, b, upper)


@pytest.mark.parametrize("user_namespace", [False, True])
def test_layers_that_only_mount_2_takes(runtime: Runtime, bundle: MakeBundle, layers: Layers, user_namespace: bool) -> None:
    """Each path is too long for fsconfig(2), and all together have room in a page."""
    upper = runtime.directory / "changes"
    b = overlay(bundle(), layers(8, 300, "parent"), upper)
    if user_namespace:
        b.user_namespace()
        for path in (upper / "upper", upper / "work"):
            path.chmod(0o777)
    check(runtime, b, upper)


@pytest.mark.not_on("runc", reason="gives mount(2) more than a page")
def test_many_layers_that_only_mount_2_takes(runtime: Runtime, bundle: MakeBundle, layers: Layers) -> None:
    """More than a page: mount(2) gets the paths from the directory that they have in common."""
    upper = runtime.directory / "changes"
    lower = layers(60, 700, "parent")
    assert sum(len(str(path)) for path in lower) > 8 * PAGE_BYTES
    check(runtime, overlay(bundle(), lower, upper), upper)


@pytest.mark.gpurun_only
def test_more_than_mount_2_takes_is_told(runtime: Runtime, bundle: MakeBundle, layers: Layers) -> None:
    b = overlay(bundle(), layers(60, 200, "each") + layers(1, 300, "parent"), runtime.directory / "changes")
    text = runtime.refused(b)
    assert 'mounts[6]: error mounting "overlay" to rootfs at "/mnt"' in text
    assert "bytes" in text and "4095" in text


def test_a_long_upper_directory(runtime: Runtime, bundle: MakeBundle, layers: Layers) -> None:
    upper = runtime.directory / ("u" * 240)
    check(runtime, overlay(bundle(), layers(2, 100, "each"), upper), upper)


@pytest.mark.parametrize("count", [1, 20])
def test_names_with_what_separates_layers(runtime: Runtime, bundle: MakeBundle, count: int) -> None:
    """A colon in a path is escaped in lowerdir, and is none in lowerdir+."""
    lower = [runtime.directory / f"a:b\\c {number:03d}" for number in range(count)]
    for number, path in enumerate(lower):
        path.mkdir()
        (path / "all").write_text(f"layer {number}\n")
    (lower[0] / "first").write_text("of the first\n")
    (lower[-1] / "last").write_text("of the last\n")
    upper = runtime.directory / "changes"
    check(runtime, overlay(bundle(), lower, upper), upper)


def test_a_long_option_of_another_file_system(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("df -k /mnt | tail -1 | awk '{print $2}'; grep ' /mnt ' /proc/mounts; touch /mnt/x")
    (b.rootfs / "mnt").mkdir()
    b.mount("/mnt", "tmpfs", "ro", "nosuid", "noexec", "size=" + "100k".rjust(FSCONFIG_BYTES + 1, "0"), kind="tmpfs")
    result = runtime.run(b)
    size, line = result.out.splitlines()
    assert size == str(0o100)  # what begins with a zero is octal
    assert {"ro", "nosuid", "noexec"} <= set(line.split()[3].split(","))
    assert "Read-only file system" in result.err


@pytest.mark.gpurun_only
def test_a_long_option_of_a_remount_is_told(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().mount("/dev/shm", "shm", "remount", "size=" + "64k".rjust(300, "0"), kind="tmpfs")
    assert 'mounts[6]: error mounting "shm" to rootfs at "/dev/shm"' in (text := runtime.refused(b))
    assert "more than 255 bytes" in text


def test_what_a_file_system_refuses_is_an_error_on_every_road(runtime: Runtime, bundle: MakeBundle, layers: Layers) -> None:
    for number, lower in enumerate((layers(2, 120, "each"), layers(2, 300, "parent"))):
        b = overlay(bundle(), lower, runtime.directory / f"changes{number}")
        b.config["mounts"][-1]["options"].append("nosuchoption")
        assert "invalid argument" in runtime.refused(b)
