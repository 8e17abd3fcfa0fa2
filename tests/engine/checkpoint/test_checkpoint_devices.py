"""Which processes of a container a checkpoint cannot save, for the GPUs that they have open."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpurun.engine.checkpoint.checkpoint_devices import require_saved_by_criu
from gpurun.errors import GpuError
from gpurun.gpu.device import GpuDevice
from gpurun.gpu.host.reads import HostNode
from tests.needs_nodes import needs_nodes

RENDER = os.makedev(226, 200)


def unit(vendor: str, minor: int = 200) -> GpuDevice:
    return GpuDevice(
        vendor, "0000:03:00.0", ("0",), 0, nodes=(HostNode("/dev/dri/renderD200", "/dev/dri/renderD200", 226, minor, True),)
    )


@needs_nodes
@pytest.mark.parametrize(("vendor", "title"), [("amd", "AMD"), ("intel", "Intel")])
def test_a_program_on_another_makers_gpu(vendor: str, title: str, tmp_path: Path) -> None:
    node = tmp_path / "any name"
    os.mknod(node, stat.S_IFCHR | 0o600, RENDER)
    open_one = os.open(node, os.O_PATH)  # to be opened for use it takes a driver
    try:
        with pytest.raises(
            GpuError, match=rf"^process {os.getpid()} \(.*\) has {node} open: .* use GPUs of {title}: end the "
        ):
            require_saved_by_criu((os.getpid(),), (unit(vendor),))
        require_saved_by_criu((os.getpid(),), (unit(vendor, 201),))
        require_saved_by_criu((os.getpid(),), (unit("nvidia"),))
    finally:
        os.close(open_one)
    require_saved_by_criu((os.getpid(),), (unit(vendor),))
