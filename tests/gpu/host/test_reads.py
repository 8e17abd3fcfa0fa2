"""What is seen of the host, and what is not to pass for something that is not there."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gpurun.gpu.amd.host import amd_gpus
from gpurun.gpu.host import reads
from gpurun.linux.files import read_regular
from tests.simcards import amd


@pytest.mark.parametrize("number", [errno.EPERM, errno.EIO, errno.ENODEV, errno.ENOENT, errno.EBUSY])
def test_an_attribute_that_the_driver_does_not_tell(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fails(path: str, _limit: int) -> bytes:
        raise OSError(number, "x", path)

    monkeypatch.setattr(reads, "read_regular", fails)
    assert reads.read_attribute("/sys/x") == ""


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_no_gpu_takes_the_number_of_one_that_was_not_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    """Without descriptors the properties of a GPU were empty: it was none, and "1" meant the next one."""
    host = amd.mi210(tmp_path / "host", count=3)
    asked: list[str] = []

    def fails_once(path: str, limit: int) -> bytes:
        asked.append(path)
        if path.endswith("/2/properties"):
            raise OSError(number, "x", path)
        return read_regular(path, limit)

    monkeypatch.setattr(reads, "read_regular", fails_once)
    with pytest.raises(OSError, match="/2/properties"):
        amd_gpus(str(host.path))
    assert asked
