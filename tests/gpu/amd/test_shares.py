"""Shares of AMD's GPUs: their memory is limited by the kernel's dmem controller, or not given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpurun.cdi.edits import ContainerEdits, MemoryLimit
from gpurun.engine.gpus.shares import preview_sharing
from gpurun.errors import GpurunError
from gpurun.gpu.resolve import Inquiry, gpu_edits
from tests.conftest import MakeBundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.needs_nodes import require_nodes
from tests.simcards import GIB, Host, amd

#: The second one in the order of PCI addresses.
ADDRESS = max(amd.MI210[0][0], amd.MI210[1][0])
REGION = f"drm/{ADDRESS}/vram"
pytestmark = pytest.mark.gpurun_only


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = amd.mi210(tmp_path / "host", count=2)
    require_nodes(made.real_nodes)
    return made


def preview(host: Host, tmp_path: Path, *env: str) -> ContainerEdits:
    own_env = {**host.env, "XDG_RUNTIME_DIR": str(tmp_path)}
    words = ("AMD_VISIBLE_DEVICES=1", *env)
    sharing = preview_sharing(words, {}, (), own_env)
    assert sharing is not None
    made = gpu_edits(
        Inquiry(env=words, annotations={}, privileged=False, own_env=own_env, sharer=sharing.give, allocate=None)
    )
    assert made is not None
    return made


def test_the_region_of_its_gpu_is_limited(host: Host, tmp_path: Path) -> None:
    host.write("sys/fs/cgroup/dmem.capacity", f"drm/0000:ff:00.0/vram {GIB}\n{REGION} {64 * GIB}")
    made = preview(host, tmp_path, "GPURUN_GPU_MEMORY=8GiB")
    assert made.memory_limits == (MemoryLimit(REGION, 8 * GIB, where="process.env GPURUN_GPU_MEMORY"),)
    assert any("limited by the kernel (dmem.max)" in text for text in made.warnings)
    assert not any("MPS" in text for text in made.warnings), "which is NVIDIA's"


@pytest.mark.parametrize(
    ("capacity", "share", "refused"),
    [
        ("", "GPURUN_GPU_MEMORY=8GiB", "nothing limits the memory of AMD GPU 1"),
        (f"{REGION} many", "GPURUN_GPU_MEMORY=8GiB", "nothing limits the memory of AMD GPU 1"),
        (f"{REGION} {64 * GIB}", "GPURUN_GPU_THREADS=50", "nothing limits the threads of AMD GPU 1"),
        (f"{REGION} {64 * GIB}", "GPURUN_GPU_MEMORY=900GiB", "has no room for a share"),
    ],
)
def test_what_nothing_would_hold_is_refused(host: Host, tmp_path: Path, capacity: str, share: str, refused: str) -> None:
    host.write("sys/fs/cgroup/dmem.capacity", capacity)
    with pytest.raises(GpurunError, match=refused):
        preview(host, tmp_path, share)


@pytest.mark.native
def test_a_kernel_without_the_controller_makes_no_container(runtime: Runtime, bundle: MakeBundle, host: Host) -> None:
    host.write("sys/fs/cgroup/dmem.capacity", f"{REGION} {64 * GIB}")
    made = bundle()
    made.process["env"] += ["AMD_VISIBLE_DEVICES=1", "GPURUN_GPU_MEMORY=8GiB"]
    if Path("/sys/fs/cgroup/dmem.capacity").exists():
        pytest.skip("this kernel has the dmem controller")
    assert "dmem" in runtime.refused(made.args("true"), env=ENVIRONMENT | host.env)
    listed = runtime("gpu", "leases", "--json", env=ENVIRONMENT | host.env)
    assert json.loads(listed.out)["leases"] == []
