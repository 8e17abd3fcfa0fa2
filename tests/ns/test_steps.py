"""Steps of the root and of read-only mounts: the error names the call that failed."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from gpurun.errors import StepError
from gpurun.linux import mount as lm
from gpurun.ns import pivot, rootfs


class Failing:
    """The mount API, of which nothing is done; one call fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, error: int) -> None:
        def stub(name: str) -> object:
            def called(*args: object, **options: object) -> int:
                if name == call:
                    raise OSError(error, os.strerror(error))
                return os.open("/", os.O_PATH)

            return called

        for name in ("mount", "open_tree_path", "mount_setattr", "move_mount"):
            monkeypatch.setattr(lm, name, stub(name))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("mount", "mount the rootfs: mount(2) to cut the mounts off the host's, /: cannot allocate memory"),
        ("open_tree_path", "mount the rootfs: open_tree(2) {root}: cannot allocate memory"),
        ("mount_setattr", "mount the rootfs: mount_setattr(2) to cut it off the host's, {root}: cannot allocate memory"),
        ("move_mount", "mount the rootfs: move_mount(2) on {root}: cannot allocate memory"),
    ],
)
def test_entering_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str, said: str) -> None:
    Failing(monkeypatch, call, errno.ENOMEM)
    with pytest.raises(StepError, match=f"^{re.escape(said.format(root=tmp_path))}$"):
        pivot.enter_root(str(tmp_path), (lm.MS_SLAVE, True))


def test_entering_a_root_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Failing(monkeypatch, "", 0)
    with pytest.raises(StepError, match=r"^mount the rootfs: open\(2\) .*/gone: no such file or directory$"):
        pivot.enter_root(str(tmp_path / "gone"), (lm.MS_SLAVE, True))


def test_the_mount_below_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Failing(monkeypatch, "", 0)

    def mount(source: str, target: str, fstype: str, flags: int, data: str = "") -> None:
        if flags == lm.MS_PRIVATE:
            raise OSError(errno.EPERM, "")

    monkeypatch.setattr(lm, "mount", mount)
    with pytest.raises(StepError, match=r"^mount the rootfs: mount\(2\) to make private /.*: operation not permitted$"):
        pivot.enter_root(str(tmp_path), (lm.MS_SLAVE, True))


@pytest.mark.parametrize(
    ("error", "tries", "said"),
    [
        (errno.EPERM, 1, "make read-only: mount_setattr(2) of the rootfs: operation not permitted"),
        (
            errno.EBUSY,
            6,
            "make read-only: mount_setattr(2): a process has a file open for writing in the rootfs: device or resource busy",
        ),
    ],
)
def test_read_only(monkeypatch: pytest.MonkeyPatch, error: int, tries: int, said: str) -> None:
    calls: list[int] = []

    def setattr_fails(fd: int, attr_set: int) -> None:
        calls.append(attr_set)
        raise OSError(error, "")

    monkeypatch.setattr(lm, "mount_setattr", setattr_fails)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(StepError, match=f"^{re.escape(said)}$"):
        rootfs.make_readonly(3, "the rootfs")
    assert calls == [lm.MOUNT_ATTR_RDONLY] * tries
