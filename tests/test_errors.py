"""Every error of a system call says what was being done: its step, its path, or the function that made the call."""

from __future__ import annotations

import errno
import importlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.engine import messages
from gpurun.errors import GpurunError, StepError, error_text
from gpurun.linux.files import read_fd, read_file, write_all
from gpurun.ns.loopback import loopback_up


def said(function: Callable[[], object]) -> str:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 # which one is what is tested
        function()
    return error_text(caught.value)


def test_a_sentence_of_ours_stays() -> None:
    assert error_text(GpurunError("a sentence")) == "a sentence"
    assert error_text(StepError("open", "/x", errno.ENOENT)) == "open /x: no such file or directory"
    assert error_text(FileNotFoundError(errno.ENOENT, "No such file or directory", "/x")) == "/x: no such file or directory"


def test_a_file_is_named(tmp_path: Path) -> None:
    """Also where read(2) or write(2) fails, which are told a descriptor alone."""
    assert said(lambda: read_file(str(tmp_path))) == f"{tmp_path}: is a directory"
    fd = os.open(tmp_path, os.O_RDONLY)
    assert said(lambda: read_fd(fd)) == f"{tmp_path}: is a directory"
    os.close(fd)
    fd = os.open("/dev/full", os.O_WRONLY)
    assert said(lambda: write_all(fd, b"x")).startswith("/dev/full: no space left on device")
    os.close(fd)


def test_a_call_without_a_path_is_named_by_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("gpurun.ns.loopback.socket", refuse)
    assert said(loopback_up) == "loopback up: too many open files"
    monkeypatch.undo()
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        assert said(lambda: messages.send(ours.fileno(), "x")) == "talk to the container's process: broken pipe"


def test_memory_and_modules() -> None:
    """An interpreter that has no descriptor or no memory left can import nothing: that is no mistake of gpurun's."""
    text = "libffi.so.8: cannot stat shared object: Cannot allocate memory"
    advice = "it is missing, or descriptors (ulimit -n) or memory have run out"
    assert error_text(ImportError(text, name="_ctypes", path="/x/_ctypes.so")) == (
        f"cannot load the Python module _ctypes ({text}): {advice}"
    )
    missing = ModuleNotFoundError("No module named 're'", name="re")
    assert error_text(missing) == f"cannot load the Python module re: {advice}"
    assert error_text(MemoryError()) == "run gpurun: cannot allocate memory"


def test_a_mistake_of_our_own_says_so() -> None:
    assert said(lambda: os.environb[b"no such"]) == "internal error in gpurun: KeyError: b'no such'"


def test_a_package_that_was_found_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its __init__.py could not be looked at (stat: ENOMEM), and Python takes the directory for a package without one."""
    (tmp_path / "emptied").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    emptied = importlib.import_module("emptied")
    reason = "it is missing, or descriptors (ulimit -n) or memory have run out"
    assert said(lambda: emptied.compile) == f"cannot load the Python module emptied: {reason}"
    assert said(lambda: errno.compile).startswith("internal error in gpurun: AttributeError")  # type: ignore[attr-defined]
