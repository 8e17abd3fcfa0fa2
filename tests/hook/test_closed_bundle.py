"""A hook whose container's config.json is closed to it: what the rootfs shows, and what an image cannot make it open."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpurun.errors import ConfigError, StepError
from gpurun.gpu.nvidia.cdi.hook_work import hook_work
from gpurun.gpu.nvidia.cdi.known_hooks import parse_call
from gpurun.hook.cdi_hook_program import read_container
from gpurun.oci.config import Device
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
    made = hook_work(call, found.hooks, found.mounts, found.devices, {})
    assert [(entry.soname, entry.path) for entry in made.ldcache] == [("libcuda.so.1", "/lib64/libcuda.so.1")]
    assert [(link.path, link.target) for link in made.links] == [("/lib64/libcuda.so.1", "libcuda.so.999")]


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
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
