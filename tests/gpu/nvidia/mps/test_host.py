"""The MPS daemon of the host: its directory may be below /tmp, where anybody can make it first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.cdi.edits import ContainerEdits, EditMount
from gpurun.gpu.nvidia.host.file_names import MPS_REASON
from gpurun.gpu.nvidia.mps.host import host_daemon
from tests.deadline import within


@pytest.fixture
def edits(tmp_path: Path) -> ContainerEdits:
    os.mkfifo(tmp_path / "control")
    return ContainerEdits(mounts=(EditMount(str(tmp_path), "/tmp/nvidia-mps", ("bind",), reason=MPS_REASON),))


@pytest.mark.parametrize(("pid", "is_there"), [(None, True), ("OWN\n", True), (str(1 << 22), False), ("", False)])
def test_by_its_pid(tmp_path: Path, edits: ContainerEdits, pid: str | None, is_there: bool) -> None:
    if pid is not None:
        (tmp_path / "nvidia-cuda-mps-control.pid").write_text(pid.replace("OWN", str(os.getpid())))
    assert host_daemon(edits) == (edits.mounts[0] if is_there else None)


def test_a_pid_file_that_blocks(tmp_path: Path, edits: ContainerEdits) -> None:
    os.mkfifo(tmp_path / "nvidia-cuda-mps-control.pid")
    with within(60):
        assert host_daemon(edits) == edits.mounts[0], "as without such a file"
