"""Limits of GPU memory in the plan: by the kernel's dmem controller and by NVIDIA's driver, and hosts without."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpurun.cdi.edits import ContainerEdits, MemoryLimit
from gpurun.cgroup import manager
from gpurun.cgroup.resources import CgroupWrite
from gpurun.cgroup.tree import Tree, dmem_capacity
from gpurun.engine.caller.update import restoring_lines
from gpurun.engine.plan.container import Host, Plan, PlanOptions, make_plan
from gpurun.errors import ConfigError, GpuError, GpurunError
from gpurun.gpu.leases.limits import kernel_limits, region_limits, regions_of
from gpurun.gpu.request.share import Share
from gpurun.oci.config import read_config
from gpurun.record import replace
from tests.engine.plan.planning import HOST, base

REGION = "drm/0000:03:00.0/vram"
LIMIT = MemoryLimit(REGION, 1 << 30, where="process.env GPURUN_GPU_MEMORY")
DMEM = replace(HOST, tree=Tree("/sys/fs/cgroup", (*HOST.tree.controllers, "dmem")))
CAPACITY = f"{REGION} 8585740288\ndrm/0000:03:00.0/stolen 4096\ndrm/0000:83:00.0/vram0 100\ndrm/0000:83:00.0/vram1 300\n"


def plan(host: Host, limit: MemoryLimit = LIMIT, driver: str = "cgroupfs", **linux: object) -> Plan:
    config = base()
    config["linux"].update(linux)
    edits = ContainerEdits(memory_limits=(limit,))
    return make_plan(read_config(json.dumps(config).encode()), "c", "/b", host, edits, PlanOptions(cgroup_manager=driver))


@pytest.mark.parametrize("driver", ["cgroupfs", "systemd"])
def test_the_kernel_keeps_it(driver: str) -> None:
    """In the container's own cgroup, after what the config asks for itself; systemd has no property for it."""
    unified = {"unified": {"dmem.max": f"{REGION} max\ndrm/0000:04:00.0/vram 5"}}
    made = plan(DMEM, driver=driver, cgroupsPath="" if driver == "systemd" else "/c", resources=unified).cgroup
    values = [write.value for write in made.writes if write.file == "dmem.max"]
    assert values == [f"{REGION} max", "drm/0000:04:00.0/vram 5", f"{REGION} {1 << 30}"], "one region in a write"
    assert made.memory_limits == () and (made.scope is None or not [p for p in made.scope.limits if "dmem" in p.where])


@pytest.mark.parametrize(
    ("host", "driver", "text"),
    [
        (HOST, "cgroupfs", 'process.env GPURUN_GPU_MEMORY: the cgroup v2 controller "dmem" is not available'),
        (DMEM, "disabled", "a limit of a GPU's memory holds for a cgroup, and the container has none"),
    ],
)
def test_nobody_keeps_it(host: Host, driver: str, text: str) -> None:
    with pytest.raises(ConfigError) as e:
        plan(host, driver=driver)
    assert text in str(e.value)


def test_the_driver_keeps_it_where_it_looks() -> None:
    limit = replace(LIMIT, library="/lib/libnvidia-ml.so.1")
    made = plan(DMEM, limit).cgroup
    assert made.memory_limits == (limit,) and not [write for write in made.writes if write.file == "dmem.max"]
    with pytest.raises(ConfigError, match=r"only for a cgroup below /sys/fs/cgroup, and this host has its cgroup v2 at /v2"):
        plan(replace(DMEM, tree=replace(DMEM.tree, root="/v2")), limit)


def test_the_regions_of_a_gpu(tmp_path: Path) -> None:
    """amdgpu has one, xe one for each tile, of which each has its part; what is stolen from the host's memory is none."""
    (tmp_path / "dmem.capacity").write_text(CAPACITY)
    capacity = dmem_capacity(str(tmp_path))
    assert regions_of(capacity, "0000:03:00.0") == ((REGION, 8585740288),)
    assert regions_of(capacity, "0000:03:00.1") == regions_of("", "0000:03:00.0") == ()
    tiles = regions_of(capacity, "0000:83:00.0")
    assert region_limits(1 << 20, tiles) == (("drm/0000:83:00.0/vram0", 1 << 18), ("drm/0000:83:00.0/vram1", 3 << 18))
    assert dmem_capacity(str(tmp_path / "none")) == ""


def test_a_share_that_the_kernel_keeps() -> None:
    share = Share(memory=1 << 30, source="process.env GPURUN_GPU_MEMORY")
    assert kernel_limits(share, "GPU 0", "0000:03:00.0", CAPACITY) == ((REGION, 1 << 30),)
    with pytest.raises(GpuError, match=r"^process.env GPURUN_GPU_MEMORY: nothing limits the memory of GPU 0: "):
        kernel_limits(share, "GPU 0", "0000:04:00.0", CAPACITY)
    with pytest.raises(GpuError, match=r"nothing limits the threads of GPU 0: ask only for a share of its memory"):
        kernel_limits(replace(share, threads=50), "GPU 0", "0000:03:00.0", CAPACITY)


@pytest.mark.parametrize(
    ("content", "refused"),
    [(f"{REGION} 4096\n", ""), ("other max\n", ""), (f"other 1\n{REGION} 8192\n", "at 8192"), (f"{REGION} max", "at max")],
)
def test_a_limit_that_older_kernels_do_not_take(tmp_path: Path, content: str, refused: str) -> None:
    """Before reclaim was there, one below what is in use was left out without an error."""
    (tmp_path / "dmem.max").write_text(content)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        manager.check_dmem(fd, (CgroupWrite("dmem.max", f"{REGION} max", "w"),))
        write = (CgroupWrite("dmem.max", f"{REGION} 4096", "linux.resources.unified.dmem.max"),)
        if not refused:
            manager.check_dmem(fd, write)
            return
        with pytest.raises(GpurunError, match=f"unified.dmem.max: the kernel keeps dmem.max of {REGION} {refused}"):
            manager.check_dmem(fd, write)
    finally:
        os.close(fd)


def test_what_an_update_puts_back() -> None:
    assert restoring_lines("dmem.max", f"{REGION} 7\n", f"{REGION} 8\nother 9\n") == (f"{REGION} 7", "other max")
