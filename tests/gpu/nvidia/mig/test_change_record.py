"""The record of a MIG change is data: whatever stands in its place, nothing waits, and nobody else is obeyed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.errors import GpurunError, StepError
from gpurun.gpu.nvidia.mig.change_record import ChangeRecord, ChangeStore
from gpurun.gpu.nvidia.mig.state import Instance, MigGpu

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")

RECORD = ChangeRecord("all-balanced", (MigGpu(0, "GPU-x", mode=True, pending=True, instances=(Instance(9, 0, 4, (2,)),)),))
OTHER = 4711


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory, with the record of a change that was cut off."""
    with ChangeStore(str(tmp_path / "mig")) as store:
        store.write(RECORD)
    return tmp_path / "mig"


def read(place: Path) -> ChangeRecord | None:
    with ChangeStore(str(place)) as store:
        return store.read()


def test_what_was_written_is_read(place: Path) -> None:
    assert read(place) == RECORD


def _of_another(file: Path) -> None:
    os.chown(file, OTHER, 0)


def _for_all(file: Path) -> None:
    file.chmod(0o666)


@pytest.mark.parametrize("change", [_of_another, _for_all])
def test_what_somebody_else_could_write_is_not_obeyed(
    place: Path, change: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    """From a time when the directory was open to others: a change that fails would go back to what it says."""
    change(place / "change.json")
    assert read(place) is None
    assert f"{place}/change.json can be written by others and is ignored" in capfd.readouterr().err


def _huge(file: Path) -> None:
    file.write_bytes(b"[" * (2 << 20))


def _long(file: Path) -> None:
    file.write_text(json.dumps({"version": 1, "config": "x" * (2 << 20), "before": []}))


def _deep(file: Path) -> None:
    file.write_bytes(b'{"a":' * 100_000)


def _odd(file: Path) -> None:
    file.write_bytes(bytes(range(256)) * 16)


def _numbers(file: Path) -> None:
    instance = {"profile": 1e300, "start": -1, "size": 10**40, "compute": [0]}
    file.write_text(
        json.dumps({"version": 1, "config": "x", "before": [{"index": 0, "uuid": "x", "instances": [instance]}]})
    )


@pytest.mark.parametrize("change", [_huge, _long, _deep, _odd, _numbers])
def test_nonsense_is_no_record(place: Path, change: Callable[[Path], None], capfd: pytest.CaptureFixture[str]) -> None:
    change(place / "change.json")
    assert read(place) is None
    (line,) = capfd.readouterr().err.splitlines()
    assert "is not a record of a MIG change and is ignored" in line and len(line) < 600


def _fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def _directory(file: Path) -> None:
    file.unlink()
    file.mkdir(mode=0o700)


@pytest.mark.parametrize("change", [_fifo, _directory])
def test_what_is_no_file_is_an_error_and_waits_for_nobody(place: Path, change: Callable[[Path], None]) -> None:
    change(place / "change.json")
    with pytest.raises(StepError, match="read"):
        read(place)


def test_a_fifo_as_lock_waits_for_nobody(place: Path) -> None:
    _fifo(place / "lock")
    assert read(place) == RECORD


def test_a_link_to_a_directory_is_none_of_ours(place: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(GpurunError, match="others can write here, so no GPU is divided"):
        read(tmp_path / "link")
