"""Which processes have a device open: all of them, or an error, but never too few."""

from __future__ import annotations

import errno
import os
import posix
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpurun.engine.checkpoint import checkpoint_devices
from gpurun.engine.gpus import open_devices
from gpurun.errors import StepError

NULL = {os.stat("/dev/null").st_rdev: "/dev/null"}
US = (os.getpid(),)


@pytest.fixture(autouse=True)
def null() -> Iterator[int]:
    """A device that we have open."""
    fd = os.open("/dev/null", os.O_RDONLY)
    yield fd
    os.close(fd)


def with_posix(monkeypatch: pytest.MonkeyPatch, module: Any, **calls: object) -> None:
    monkeypatch.setattr(module, "posix", SimpleNamespace(**{**vars(posix), **calls}))


def failing(name: str) -> Any:
    def fails(*_: object, **__: object) -> None:
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

    return fails


@pytest.mark.parametrize("name", ["ENOENT", "ESRCH", "EACCES", "EPERM"])
def test_a_process_that_has_ended_or_is_another_users(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert [one.path for one in open_devices.openers(US, NULL)] == ["/dev/null"]
    with_posix(monkeypatch, open_devices, listdir=failing(name))
    assert open_devices.openers(US, NULL) == ()


@pytest.mark.parametrize("name", ["EMFILE", "ENFILE", "ENOMEM", "EIO"])
def test_a_list_that_cannot_be_read_is_not_empty(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Else a GPU would be taken from under a process that uses it, or a checkpoint would not know of it."""
    for module, look in (
        (open_devices, lambda: open_devices.openers(US, NULL)),
        (checkpoint_devices, lambda: checkpoint_devices._open_files(US[0])),
    ):
        with_posix(monkeypatch, module, listdir=failing(name))
        said = f"see what the process has open: {US[0]}: {os.strerror(getattr(errno, name)).lower()}"
        with pytest.raises(StepError, match=rf"^{re.escape(said)}"):
            look()


def test_a_descriptor_that_is_closed_hides_no_other(monkeypatch: pytest.MonkeyPatch, null: int) -> None:
    closed = os.dup(null)
    os.close(closed)
    for module in (open_devices, checkpoint_devices):
        with_posix(monkeypatch, module, listdir=lambda _: [str(closed), str(null)])
    assert checkpoint_devices._open_files(US[0]) == [(str(null), "/dev/null")]
    assert [one.path for one in open_devices.openers(US, NULL)] == ["/dev/null"]


@pytest.mark.parametrize("name", ["EMFILE", "EIO"])
def test_maps_that_cannot_be_read_are_not_empty(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(checkpoint_devices, "read_file", failing(name))
    with pytest.raises(StepError, match=rf"^see what the process has mapped: {US[0]}: "):
        checkpoint_devices._points_in_use(US, [])
