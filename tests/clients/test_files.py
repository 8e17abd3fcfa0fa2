"""Files below /etc are on the disk, and their names too, when the command that wrote them ends."""

from __future__ import annotations

import os
import posix
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.cdi.document import CdiDevice, CdiEdits, CdiSpec
from gpurun.clients import files
from gpurun.clients.files import KEPT, Change
from gpurun.commands.cdi_generate import write_spec

SPEC = CdiSpec("0.6.0", "vendor.com/device", (CdiDevice("d0", CdiEdits()),))


def changed(path: Path) -> None:
    path.write_text("old")
    path.chmod(0o640)
    files.apply(Change(str(path), "new", "old"))
    assert (path.read_text(), path.with_name(path.name + KEPT).read_text()) == ("new", "old")
    assert path.stat().st_mode & 0o7777 == 0o640


def taken_back(path: Path) -> None:
    path.write_text("new")
    files.take_back(Change(str(path), "new", "old"))


#: (what writes the file, how many files it writes)
WRITERS: dict[str, tuple[Callable[[Path], object], int]] = {
    "a client's file": (changed, 1),  # its copy is a second name of the file before
    "taken back": (taken_back, 1),
    "a CDI file": (lambda path: write_spec(SPEC, str(path)), 1),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_renamed_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write, count = WRITERS[name]
    rename, fsync = posix.rename, posix.fsync
    done: list[str] = []

    def renamed(old: str, new: str) -> None:
        done.append("renamed")
        rename(old, new)

    def synced(fd: int) -> None:
        done.append("directory synced" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file synced")
        fsync(fd)

    monkeypatch.setattr(posix, "rename", renamed)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(posix, "fsync", synced)
    monkeypatch.setattr(os, "fsync", synced)
    write(tmp_path / "file.json")
    assert done == ["file synced", "renamed", "directory synced"] * count
