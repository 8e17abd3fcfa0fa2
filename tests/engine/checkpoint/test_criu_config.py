"""The file of CRIU's settings that an annotation names: one that the container, or another user, can write is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.engine.checkpoint.criu_options import config_file
from gpurun.errors import ConfigError
from gpurun.oci.annotations import CRIU_CONFIG
from gpurun.oci.config import Config, read_config
from gpurun.record import replace


def config(named: str | None) -> Config:
    made = read_config(b'{"ociVersion": "1.0.2", "root": {"path": "rootfs"}, "process": {"cwd": "/", "args": ["true"]}}')
    return made if named is None else replace(made, annotations={CRIU_CONFIG: named})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with ``criu.conf`` and ``rootfs/criu.conf``, above which nobody else can write."""
    (tmp_path / "rootfs").mkdir(mode=0o755)
    for path in (tmp_path / "criu.conf", tmp_path / "rootfs/criu.conf"):
        path.write_text("action-script /evil\n")
        path.chmod(0o644)
    return tmp_path


def refused(place: Path, named: Path | str) -> str:
    with pytest.raises(ConfigError) as e:
        config_file(config(str(named)), str(place / "rootfs"))
    assert e.value.where == "annotations.org.criu.config"
    return str(e.value)


def test_of_the_caller(place: Path) -> None:
    assert config_file(config(str(place / "criu.conf")), str(place / "rootfs")) == str(place / "criu.conf")
    (place / "link").symlink_to("criu.conf")
    assert config_file(config(str(place / "link")), str(place / "rootfs")) == str(
        place / "criu.conf"
    )  # CRIU gets what was looked at
    assert config_file(config(""), str(place / "rootfs")) == ""


def test_below_the_rootfs(place: Path) -> None:
    assert "is a file of the container's root" in refused(place, place / "rootfs/criu.conf")
    (place / "link").symlink_to("rootfs/criu.conf")
    assert "is a file of the container's root" in refused(place, place / "link")
    (place / "other").symlink_to("rootfs")
    with pytest.raises(ConfigError, match="of the container's root"):
        config_file(config(str(place / "rootfs/criu.conf")), str(place / "other"))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user: root")
def test_of_another_user(place: Path) -> None:
    os.chown(place / "criu.conf", 1234, 0)
    assert "belongs to the user 1234" in refused(place, place / "criu.conf")


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_that_others_write(place: Path, mode: int) -> None:
    (place / "criu.conf").chmod(mode)
    assert "can be written by others" in refused(place, place / "criu.conf")


def test_that_others_replace(place: Path) -> None:
    (place / "shared").mkdir()
    (place / "shared/criu.conf").write_text("")
    (place / "shared/criu.conf").chmod(0o644)
    (place / "shared").chmod(0o777)
    assert f"can be replaced by others, who can write to {place}/shared" in refused(place, place / "shared/criu.conf")
    (place / "shared").chmod(0o1777)  # as /tmp: nobody renames another's file there
    assert config_file(config(str(place / "shared/criu.conf")), str(place / "rootfs"))


def test_what_is_no_file(place: Path) -> None:
    os.mkfifo(place / "fifo")
    assert "is not a regular file" in refused(place, place / "fifo")
    assert "is not a regular file" in refused(place, place)
    assert "is not a regular file" in refused(place, "/dev/null")
    assert "no such file or directory" in refused(place, place / "none")
    assert "is not an absolute path" in refused(place, "criu.conf")
    assert "is not an absolute path" in refused(place, "/a\0b")
