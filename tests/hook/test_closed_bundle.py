"""A hook whose container's config.json is closed to it: what the rootfs shows, and what an image cannot make it open."""

from __future__ import annotations

import errno
import json
import os
import posix
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpurun.errors import ConfigError, GpurunError, StepError
from gpurun.gpu.nvidia.cdi.hook_work import hook_work, library_of
from gpurun.gpu.nvidia.cdi.known_hooks import parse_call
from gpurun.hook import cdi_hook_program, closed_bundle
from gpurun.hook.cdi_hook_program import read_container
from gpurun.hook.closed_bundle import devices_in, libraries_in
from gpurun.linux.files import read_file
from gpurun.ns.path import UNUSABLE
from gpurun.oci.config import Device
from tests.native.descriptors import descriptors_left
from tests.needs_nodes import needs_nodes
from tests.simdriver.elf import shared_library


def state(tmp_path: Path, **members: str) -> str:
    path = tmp_path / "state"
    path.write_text(json.dumps({"ociVersion": "1.0.0", "id": "x", **members}))
    return str(path)


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """An image with the driver's library in /lib64, a link out of it, and things that only look like libraries."""
    root = tmp_path / "rootfs"
    (root / "usr/lib64").mkdir(parents=True)
    (root / "dev").mkdir()
    (root / "lib64").symlink_to("/usr/lib64")  # within the image, not the host
    (root / "usr/lib64/libcuda.so.999").write_bytes(shared_library("libcuda.so.1"))
    outside = tmp_path / "outside.so"
    outside.write_bytes(shared_library("liboutside.so.1"))
    (root / "usr/lib64/liboutside.so").symlink_to(outside)
    os.mkfifo(root / "usr/lib64/libfifo.so")  # which would hold us for ever
    (root / "away").symlink_to("../../../../../etc")
    return root


@pytest.mark.parametrize("bundle", [{}, {"bundle": "/nowhere/at/all"}])
def test_the_rootfs_says_which_libraries(tmp_path: Path, rootfs: Path, bundle: dict[str, str]) -> None:
    """NVIDIA/nvidia-container-toolkit#648, by the member that crun has in the state."""
    call = parse_call(("update-ldcache", "--folder", "/lib64/,/away", "--folder", "/none"))
    assert call is not None
    found = read_container(state(tmp_path, root=str(rootfs), **bundle), call.values("folder"))
    assert found.rootfs == str(rootfs) and found.devices == ()
    made = hook_work(call, found.hooks, found.mounts, found.devices, {}, found.libraries)
    assert [(entry.soname, entry.path) for entry in made.ldcache] == [("libcuda.so.1", "/lib64/libcuda.so.1")]
    assert [(link.path, link.target) for link in made.links] == [("/lib64/libcuda.so.1", "libcuda.so.999")]


@needs_nodes
def test_the_rootfs_says_which_devices(tmp_path: Path, rootfs: Path) -> None:
    os.mknod(rootfs / "dev/nvidia1", 0o20666, os.makedev(195, 1))
    (rootfs / "dev/nvidia2").write_text("a file")
    (rootfs / "dev/nvidia3").symlink_to("/dev/nvidia0")
    assert read_container(state(tmp_path, root=str(rootfs))).devices == (Device("/dev/nvidia1", "c", 195, 1),)


def test_without_the_rootfs_it_is_an_error(tmp_path: Path) -> None:
    for root in ({}, {"root": "relative"}):
        with pytest.raises(StepError, match=r"read /nowhere/config\.json: no such file"):
            read_container(state(tmp_path, bundle="/nowhere", **root))
    with pytest.raises(ConfigError, match=r"state\.bundle: is missing"):
        read_container(state(tmp_path))


def test_no_config_of_the_hosts_root_is_read(tmp_path: Path, rootfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state without a bundle has no config.json, also where the host has one at the place that an empty name leads to."""
    real, asked = read_file, []

    def reading(path: str, limit: int) -> bytes:
        asked.append(path)
        return real(path, limit)

    monkeypatch.setattr(cdi_hook_program, "read_file", reading)
    read_container(state(tmp_path, root=str(rootfs)))
    assert asked == [str(tmp_path / "state")]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ENOMEM])
def test_a_config_that_cannot_be_read_is_not_closed(
    tmp_path: Path, rootfs: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = read_file

    def reading(path: str, limit: int) -> bytes:
        if path.endswith("config.json"):
            raise OSError(number, os.strerror(number), path)
        return real(path, limit)

    monkeypatch.setattr(cdi_hook_program, "read_file", reading)
    with pytest.raises(StepError, match=r"^read /b/config\.json: "):
        read_container(state(tmp_path, root=str(rootfs), bundle="/b"))


# ---- attacks: the image changes while it is looked at


def _linked(path: Path) -> None:
    path.symlink_to(path.parents[3] / "outside.so")


def _a_node(path: Path) -> None:
    os.mknod(path, 0o20666, os.makedev(10, 130))  # a watchdog, which begins to run when it is opened


CHANGES: dict[str, Callable[[Path], object]] = {
    "gone": lambda path: None,
    "a link out of the image": _linked,
    "a FIFO": os.mkfifo,
    "a directory": Path.mkdir,
    "a node": _a_node,
    "a link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is opened for reading meanwhile."""
    found: list[str] = []

    def of(number: int) -> None:
        found.append(os.readlink(f"/proc/self/fd/{number}"))

    real = library_of

    def reading(fd: int, path: str) -> object:
        of(fd)
        return real(fd, path)

    monkeypatch.setattr(closed_bundle, "library_of", reading)
    return found


@needs_nodes
@pytest.mark.parametrize("change", CHANGES)
def test_a_library_that_becomes_something_else(
    rootfs: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str], change: str
) -> None:
    """Between the list of names and the look at one of them; the one beside it is found all the same."""
    changing, beside = rootfs / "usr/lib64/libcuda.so.999", rootfs / "usr/lib64/libnvidia-ml.so.999"
    beside.write_bytes(shared_library("libnvidia-ml.so.1"))
    real = closed_bundle._names

    def names(directory: int, path: str, prefix: str) -> list[str]:
        listed = real(directory, path, prefix)
        assert changing.name in listed
        changing.unlink()
        CHANGES[change](changing)
        return listed

    monkeypatch.setattr(closed_bundle, "_names", names)
    assert [library.soname for library in libraries_in(str(rootfs), ("/lib64",))] == ["libnvidia-ml.so.1"]
    assert opened == [str(beside)]


def test_what_was_read_is_not_read_again(tmp_path: Path, rootfs: Path) -> None:
    """Whoever puts a link in the place of a library afterwards has the hook open nothing."""
    call = parse_call(("update-ldcache", "--folder", "/lib64"))
    assert call is not None
    found = read_container(state(tmp_path, root=str(rootfs)), call.values("folder"))
    (rootfs / "usr/lib64/libcuda.so.999").unlink()
    _linked(rootfs / "usr/lib64/libcuda.so.999")
    made = hook_work(call, found.hooks, found.mounts, found.devices, {}, found.libraries)
    assert [entry.soname for entry in made.ldcache] == ["libcuda.so.1"]


@needs_nodes
def test_a_node_that_goes_hides_no_other(rootfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 1):
        os.mknod(rootfs / f"dev/nvidia{number}", 0o20666, os.makedev(195, number))
    real = closed_bundle._names

    def names(directory: int, path: str, prefix: str) -> list[str]:
        listed = real(directory, path, prefix)
        (rootfs / "dev/nvidia0").unlink()
        return listed

    monkeypatch.setattr(closed_bundle, "_names", names)
    assert devices_in(str(rootfs)) == (Device("/dev/nvidia1", "c", 195, 1),)


def test_a_directory_without_end(rootfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_bundle, "_MAX_NAMES", 20)
    for number in range(21):
        (rootfs / f"usr/lib64/x{number}").touch()
        (rootfs / f"dev/x{number}").touch()
    with pytest.raises(GpurunError, match=r"^/lib64 of the container has more than 20 names"):
        libraries_in(str(rootfs), ("/lib64",))
    with pytest.raises(GpurunError, match=r"^/dev of the container has more than 20 names"):
        devices_in(str(rootfs))


@pytest.mark.parametrize("soname", ["../../../etc/passwd", "/etc/passwd", "a\nb", "..", "x" * 300])
def test_a_soname_that_leads_away(rootfs: Path, soname: str) -> None:
    """It is the image's word: no link is made by it but beside its library."""
    (rootfs / "usr/lib64/libevil.so").write_bytes(shared_library(soname))
    call = parse_call(("update-ldcache", "--folder", "/lib64"))
    assert call is not None
    made = hook_work(call, (), (), (), {}, libraries_in(str(rootfs), ("/lib64",)))
    assert len(made.links) >= 1
    assert [link.path for link in made.links if link.path.rpartition("/")[0] != "/lib64"] == []


# ---- what cannot be looked at


def test_without_descriptors_it_is_no_empty_image(rootfs: Path) -> None:
    """However many are left: either all is found, or it is said what could not be opened."""
    errors = []
    for left in range(6):
        for look in (lambda: libraries_in(str(rootfs), ("/lib64",)), lambda: devices_in(str(rootfs))):
            with descriptors_left(left):
                try:
                    found: Any = look()
                except GpurunError as e:
                    found = None
                    errors.append(str(e))
            assert found is None or found == look()
    assert all(error.endswith(": too many open files") for error in errors), errors
    said = {error.removesuffix(": too many open files") for error in errors}
    assert said >= {f"open the rootfs {rootfs}", "open the container's /lib64", "open the container's /dev"}
    assert any(error.startswith("open the container's library /lib64/libcuda.so.999") for error in errors)


@pytest.mark.parametrize("call", ["open_in_root", "open_file"])
@pytest.mark.parametrize("number", [*UNUSABLE, errno.EIO, errno.ENOMEM, errno.ENFILE], ids=errno.errorcode.get)
def test_which_errors_are_of_the_image(rootfs: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number), "x")

    monkeypatch.setattr(closed_bundle, call, fails)
    if number in UNUSABLE:
        assert libraries_in(str(rootfs), ("/lib64",)) == ()
    else:
        with pytest.raises(StepError, match=r"^open the container's (library )?/lib64"):
            libraries_in(str(rootfs), ("/lib64",))


@pytest.mark.parametrize("call", ["scandir", "stat"])
def test_a_directory_that_cannot_be_read(rootfs: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    (rootfs / "dev/nvidia0").touch()

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(closed_bundle, "posix", SimpleNamespace(**{**vars(posix), call: fails}))
    with pytest.raises(StepError, match=r"the container's /dev.*: input/output error$"):
        devices_in(str(rootfs))


def test_no_descriptor_stays(tmp_path: Path, rootfs: Path) -> None:
    before = os.listdir("/proc/self/fd")
    read_container(state(tmp_path, root=str(rootfs)), ("/lib64", "/none", "/away", "/usr/lib64"))
    assert len(os.listdir("/proc/self/fd")) == len(before)
