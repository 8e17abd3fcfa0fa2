"""What several suites of this room hold: the caller's end of a terminal, and the place of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.checkpoint import why_not
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime
from tests.native.terminal import Listener


@pytest.fixture
def listener(runtime: Runtime) -> Iterator[Listener]:
    made = Listener(runtime.directory / "console.sock")
    yield made
    made.socket.close()


@pytest.fixture
def image(runtime: Runtime, leaks: Leaks) -> Path:
    """Where to save to; the containers of these tests write into their rootfs.  Skips the test where CRIU cannot be used."""
    if why_not():
        pytest.skip(why_not())
    leaks.allow_rootfs_changes()
    return runtime.directory / "image"
