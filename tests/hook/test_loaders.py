"""Whether the image has a loader, or a node: what cannot be told is no "no"."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpurun.cdi.edits import ForwardCompat
from gpurun.errors import StepError
from gpurun.hook.loaders import tell_loaders
from gpurun.hook.rootfs_target import Target
from gpurun.ns.devices import is_there
from gpurun.ns.journal import Journal
from gpurun.ns.mount_plan import DeviceStep


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO, errno.ENOMEM])
def test_an_error_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def failing(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("gpurun.hook.loaders.open_in_root", failing)
    monkeypatch.setattr("gpurun.ns.devices.open_in_root", failing)
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    with pytest.raises(StepError, match="look in the rootfs for") as caught:
        tell_loaders(Target(fd, Journal(fd), False, False), (), ())
    assert caught.value.errno == error
    with pytest.raises(StepError, match="/dev/nvidia0"):
        is_there(fd, DeviceStep("/dev/nvidia0", "c", 195, 0, 0o666, 0, 0))
    os.close(fd)


@pytest.mark.parametrize("loader", [f"ld-musl-{os.uname().machine}.so.1", "ld-linux-x86-64.so.2"])
@pytest.mark.parametrize("compat", [None, ForwardCompat("/usr/local/cuda/compat", "550.163.01")])
def test_nothing_to_tell_leaves_nothing(tmp_path: Path, loader: str, compat: ForwardCompat | None) -> None:
    """The hook enable-cuda-compat by itself, in an image without newer libraries."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "lib" / loader).write_text("")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    tell_loaders(Target(fd, Journal(fd), False, False), (), (), compat)
    assert not list((tmp_path / "etc").iterdir())
    os.close(fd)


@pytest.mark.parametrize("kind", ["none", "no directory", "loop"])
def test_a_node_that_is_not_there(tmp_path: Path, kind: str) -> None:
    if kind == "no directory":
        (tmp_path / "dev").write_text("")
    elif kind == "loop":
        (tmp_path / "dev").symlink_to("dev")
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    assert not is_there(fd, DeviceStep("/dev/nvidia0", "c", 195, 0, 0o666, 0, 0))
    os.close(fd)
