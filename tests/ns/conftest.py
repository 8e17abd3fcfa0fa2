"""A rootfs with an etc, and its descriptor, for the journal and what undoes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    return tmp_path / "rootfs"


@pytest.fixture
def root_fd(rootfs: Path) -> Iterator[int]:
    fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)
