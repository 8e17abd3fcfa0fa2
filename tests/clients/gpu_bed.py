"""The bed of clients on a simulated driver of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients.bed import ClientBed, ClientBedUnavailable, make_bed
from tests.conftest import runtime_path
from tests.simdriver import Options, make


@contextmanager
def gpu_bed(name: str, options: Options) -> Iterator[ClientBed]:
    """The bed of this machine with the runtime under test registered as *name*, on a simulated driver; skips without one."""
    with tempfile.TemporaryDirectory(prefix="gpurun-clients.", dir="/var/tmp") as place:
        try:
            bed = make_bed({name: runtime_path()}, make(Path(place) / "driver", options).path)
        except ClientBedUnavailable as e:
            pytest.skip(str(e))
        try:
            yield bed
        finally:
            bed.close()
            shutil.rmtree(bed.directory)
