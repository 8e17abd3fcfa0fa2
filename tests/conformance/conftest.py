from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.hooks import Recorder
from tests.native.runtime import Runtime


@pytest.fixture
def record(runtime: Runtime, place: Path, busybox: Path) -> Recorder:
    directory = runtime.directory / "record"
    directory.mkdir()
    directory.chmod(0o777)
    return Recorder(directory, place)
