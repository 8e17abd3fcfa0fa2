"""Edits put into images of all kinds: where links lead, what is covered, and that the image is left as it was."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.edits import ContainerEdits, Link
from gpurun.errors import GpurunError
from gpurun.hook.image_files import MAX_SIZE
from gpurun.linux.mount import MS_BIND, mount
from tests.hook.applying import LIB, V, applied, edits_of, made, undone
from tests.native.listing import tree_listing
from tests.simdriver import SimulatedDriver

pytestmark = pytest.mark.native


@pytest.mark.parametrize("user_namespace", [False, True])
def test_the_image_is_left_as_it_was(
    sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any, user_namespace: bool
) -> None:
    (rootfs / "etc/ld.so.cache").write_bytes(b"not a cache")
    before = tree_listing(rootfs)
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    created = in_mount_namespace(lambda: applied(rootfs, edits, user_namespace))
    during = tree_listing(rootfs)
    kept = {path for path in during if path.startswith("etc/.ld.so.cache.")}
    assert [during[path] for path in kept] == [before["etc/ld.so.cache"]], "the image's own is kept, to be given back"
    assert set(during) - set(before) == {c.partition(" -> ")[0] for c in made(created)} - {"etc/ld.so.cache"} | kept
    assert {path for path in before if during[path] != before[path]} == {"etc/ld.so.cache"}
    assert not any(path.startswith("dev/") for path in during), "the nodes are on the container's own /dev"
    assert undone(rootfs, created) == ()
    assert tree_listing(rootfs) == before


def test_what_the_container_changed_is_kept(sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any) -> None:
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")
    created = in_mount_namespace(lambda: applied(rootfs, edits))
    (rootfs / LIB / "theirs").write_text("x")
    (rootfs / LIB / f"libcuda.so.{V}").write_text("x")
    (rootfs / LIB / "libcuda.so").unlink()
    (rootfs / LIB / "libcuda.so").symlink_to("elsewhere")
    assert undone(rootfs, created) == ()
    assert sorted(os.listdir(rootfs / LIB)) == ["libcuda.so", f"libcuda.so.{V}", "theirs"]


def test_a_stale_library_of_the_image_is_covered_not_replaced(
    sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any
) -> None:
    (rootfs / LIB).mkdir(parents=True)
    (rootfs / LIB / "libcuda.so.1").symlink_to("libcuda.so.470.1")
    (rootfs / LIB / "libcuda.so.470.1").write_text("stale")
    (rootfs / LIB / "libnvidia-ml.so.1").write_text("stub")
    before = tree_listing(rootfs)
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")

    def look() -> tuple[bytes, bool, bool]:
        created = applied(rootfs, edits)
        host = sim.path / LIB
        return (
            created,
            os.path.samefile(rootfs / LIB / "libcuda.so.1", host / f"libcuda.so.{V}"),
            os.path.samefile(rootfs / LIB / "libnvidia-ml.so.1", host / f"libnvidia-ml.so.{V}"),
        )

    created, cuda, ml = in_mount_namespace(look)
    assert cuda and ml
    assert undone(rootfs, created) == ()
    assert tree_listing(rootfs) == before


def evil_links(rootfs: Path, outside: Path) -> None:
    """Every directory that anything is put into leads out of the rootfs, if it is followed as a host path."""
    (rootfs / "lib").unlink()
    (rootfs / "usr/lib").rmdir()
    (rootfs / "usr/bin").rmdir()
    (rootfs / "etc").rmdir()
    for name in ("usr/lib", "usr/bin", "etc", "lib", "run"):
        (rootfs / name).symlink_to(f"../../../../..{outside}/{Path(name).name}")
        (outside / Path(name).name).mkdir(exist_ok=True)


def test_links_of_the_image_lead_nowhere_else(
    sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    evil_links(rootfs, outside)
    before_outside, before = tree_listing(outside), tree_listing(rootfs)
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    created = in_mount_namespace(lambda: applied(rootfs, edits))
    assert tree_listing(outside) == before_outside
    assert undone(rootfs, created) == ()
    assert tree_listing(outside) == before_outside and tree_listing(rootfs) == before


def test_a_loader_cache_that_is_a_link_to_the_host_is_not_read(
    sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any, tmp_path: Path
) -> None:
    """A process in the container would see its own root behind that link: there is no such file there."""
    (tmp_path / "secret").write_bytes(b"host secret")
    (rootfs / "etc/ld.so.cache").symlink_to(tmp_path / "secret")
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")

    def look() -> bytes:
        applied(rootfs, edits)
        return (rootfs / str(tmp_path / "secret").lstrip("/")).read_bytes()

    assert in_mount_namespace(look).startswith(b"glibc-ld.so.cache1.1")
    assert (tmp_path / "secret").read_bytes() == b"host secret"


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "huge"])
def test_a_loader_cache_that_is_no_file(sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any, kind: str) -> None:
    """Nothing of the kind is replaced: a private file is bound over it, and only a directory cannot be covered so."""
    path = rootfs / "etc/ld.so.cache"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "huge":
        with path.open("wb") as f:
            f.truncate(MAX_SIZE + 1)
    else:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    before = tree_listing(rootfs)["etc/ld.so.cache"]
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")

    def look() -> tuple[bytes, bytes]:
        journal = applied(rootfs, edits)
        return journal, path.read_bytes()

    if kind == "directory":
        with pytest.raises(GpurunError, match=r"compose the loader's cache /etc/ld\.so\.cache"):
            in_mount_namespace(look)
    else:
        journal, content = in_mount_namespace(look)
        assert content.startswith(b"glibc-ld.so.cache1.1")
        assert "etc/ld.so.cache" not in made(journal)
    assert tree_listing(rootfs)["etc/ld.so.cache"] == before


def test_etc_that_is_a_volume_is_not_written_into(
    sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    (volume / "ld.so.conf.d").mkdir(parents=True)
    (volume / "ld.so.cache").write_bytes(b"the volume's")
    before = tree_listing(volume)

    def look() -> bytes:
        mount(str(volume), str(rootfs / "etc"), "none", MS_BIND)
        applied(rootfs, edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0"))
        return (rootfs / "etc/ld.so.cache").read_bytes()

    assert in_mount_namespace(look).startswith(b"glibc-ld.so.cache1.1")
    assert {path: what for path, what in tree_listing(volume).items() if path.startswith("ld.so")} == before


def test_etc_that_is_a_link_is_followed_inside(sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any) -> None:
    (rootfs / "etc").rmdir()
    (rootfs / "usr/etc").mkdir()
    (rootfs / "etc").symlink_to("/usr/etc")
    before = tree_listing(rootfs)
    journal = in_mount_namespace(lambda: applied(rootfs, edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")))
    assert (rootfs / "usr/etc/ld.so.cache").read_bytes().startswith(b"glibc-ld.so.cache1.1")
    undone(rootfs, journal)
    assert tree_listing(rootfs) == before


def test_a_second_container_changes_nothing_more(sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any) -> None:
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")
    in_mount_namespace(lambda: applied(rootfs, edits))
    first = tree_listing(rootfs)
    assert made(in_mount_namespace(lambda: applied(rootfs, edits))) == []
    assert tree_listing(rootfs) == first


def test_a_read_only_root_is_not_written(sim: SimulatedDriver, rootfs: Path, in_mount_namespace: Any) -> None:
    (rootfs / "etc/ld.so.conf.d").mkdir()
    (rootfs / "etc/ld.so.cache").write_bytes(b"")
    before = tree_listing(rootfs)
    edits = edits_of(sim, "NVIDIA_VISIBLE_DEVICES=0")
    in_mount_namespace(lambda: applied(rootfs, edits, readonly=True))
    after = tree_listing(rootfs)
    assert {k: v for k, v in after.items() if k.startswith("etc/ld")} == {
        k: before[k] for k in before if k.startswith("etc/ld")
    }


def test_a_link_over_something_of_the_image_that_no_library_can_cover(rootfs: Path, in_mount_namespace: Any) -> None:
    (rootfs / "etc/x").write_text("the image's")
    (rootfs / "etc/y").write_text("the image's too")
    edits = ContainerEdits(links=(Link("/etc/x", "y"),))
    with pytest.raises(GpurunError, match="make the link /etc/x"):
        in_mount_namespace(lambda: applied(rootfs, edits))
    assert (rootfs / "etc/x").read_text() == "the image's"
