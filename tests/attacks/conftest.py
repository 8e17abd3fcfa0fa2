"""What every attack needs: a directory of the host that an image would like to reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native.leaks import Leaks
from tests.native.runtime import Runtime


@pytest.fixture
def outside(runtime: Runtime, leaks: Leaks) -> Path:
    """A directory of the host, beside the bundles; the rootfs of the test may change."""
    leaks.allow_rootfs_changes()
    directory = runtime.directory / "outside"
    (directory / "dir").mkdir(parents=True)
    (directory / "file").write_text("of the host\n")
    return directory
