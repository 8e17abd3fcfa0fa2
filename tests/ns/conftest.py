"""The descriptor of a rootfs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def root_fd(rootfs: Path) -> Iterator[int]:
    fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)
