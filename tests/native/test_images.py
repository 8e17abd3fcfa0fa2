"""Images that tests keep: what a run that was killed has left in the cache is removed, and two runs make one."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from tests.native import images
from tests.native.waiting import wait_until

PROGRAM = """#!/bin/sh
for out; do :; done
echo made >>"$0.log"
echo image >"$out"
"""


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and an mmdebstrap that writes a line."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "mmdebstrap").write_text(PROGRAM)
    (programs / "mmdebstrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(images, "CACHE", tmp_path / "cache")
    return images.CACHE


def test_what_a_killed_run_has_left_goes(cache: Path) -> None:
    (cache / ".making").mkdir(parents=True)
    (cache / ".making/image.tar").touch()
    tar = images.debian_tar("one")
    assert list(cache.iterdir()) == [tar] and tar.read_text() == "image\n"


def test_an_image_that_another_run_makes_is_waited_for(cache: Path, tmp_path: Path) -> None:
    first = images.debian_tar("one")
    second = first.with_name(first.name.replace("one", "two"))
    held = os.open(cache, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    found: list[Path] = []
    waiting = threading.Thread(target=lambda: found.append(images.debian_tar("two")))
    waiting.start()
    wait_until(lambda: any("->" in line and f" {os.getpid()} " in line for line in Path("/proc/locks").open()))
    first.rename(second)
    os.close(held)
    waiting.join(60)
    assert found == [second] and (tmp_path / "bin/mmdebstrap.log").read_text() == "made\n"
