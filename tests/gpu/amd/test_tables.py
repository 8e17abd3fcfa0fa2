"""The tables of AMD's container-toolkit as cases of ours: 20 rows of devices, 6 of environments.

Where AMD's rows give a KFD node the address of another PCI device than its own, or call a CPU's node a GPU's, the hosts
here are such as the kernel makes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.gpu.amd.host import amd_gpus, kfd_nodes
from gpurun.gpu.amd.request import read_request, select
from gpurun.gpu.host.drm import node_of_sysfs
from tests.needs_nodes import require_nodes
from tests.simcards import RENDER, VIDEO, Card, Host, amd

FIRST, SECOND = "0000:05:00.0", "0000:48:00.0"
#: Case of AMD's → (PCI address that KFD says, partition, card, render minor, unique id, platform device) of each device.
CASES = {
    "none": [],
    "single_gpu": [(FIRST, 0, 0, 128, 1, "")],
    "gpu_with_partition": [(FIRST, 0, 0, 128, 1, ""), (FIRST, 1, 1, 129, 2, "amdgpu_xcp_0")],
    "multiple_gpus": [(FIRST, 0, 0, 128, 1, ""), (SECOND, 0, 1, 130, 3, "")],
    "unordered_partitions": [
        (FIRST, 0, 0, 128, 1, ""), (FIRST, 1, 1, 129, 2, "amdgpu_xcp_0"), (SECOND, 0, 2, 130, 3, "amdgpu_xcp_1"),
    ],
}  # fmt: skip
GPU_CASES = [name for name in CASES if name != "none"]


def _host(path: Path, case: str) -> Host:
    host = Host(path)
    for number, (pci, partition, card, render, unique, platform) in enumerate(CASES[case]):
        facts = {"location_id": amd.location(pci, partition), "gfx_target_version": 90402, "unique_id": unique}
        amd.gpu(host, number, pci, render, 0x74A1, {}, 0, **facts)
        if platform:
            host.drm(f"sys/devices/platform/{platform}", f"platform-{platform}", card, render)
        else:
            host.add(Card(pci, "amdgpu", amd.AMD, 0x74A1, card, render))
    if CASES[case]:
        host.link("sys/class/kfd/kfd", "sys/devices/virtual/kfd/kfd")
    return host


@pytest.mark.parametrize("case", CASES)
def test_which_devices_there_are(tmp_path: Path, case: str) -> None:
    """Five rows: in AMD's order, the card node before the render node."""
    found = [[node.path for node in gpu.drm.nodes] for gpu in amd_gpus(str(_host(tmp_path, case).path))]
    assert found == [[f"/dev/dri/card{card}", f"/dev/dri/renderD{render}"] for _, _, card, render, _, _ in CASES[case]]


@pytest.mark.parametrize("case", GPU_CASES)
def test_which_device_a_render_node_is_of(tmp_path: Path, case: str) -> None:
    """Four rows."""
    found = {node.value("drm_render_minor"): node.pci for node in kfd_nodes(str(_host(tmp_path, case).path))}
    assert found == {render: pci for pci, _, _, render, _, _ in CASES[case]}


@pytest.mark.parametrize("case", GPU_CASES)
@pytest.mark.parametrize("form", ["0x{:x}", "0x{:016x}", "0X{:X}", "{:016x}"])
def test_which_index_a_unique_id_is(tmp_path: Path, case: str, form: str) -> None:
    """Four rows.  AMD's keys are 0x1 and 1; without 0x a word of less than nine digits is an index in a request."""
    gpus = amd_gpus(str(_host(tmp_path, case).path))
    for index, (_, _, _, _, unique, _) in enumerate(CASES[case]):
        request = read_request((f"AMD_VISIBLE_DEVICES={form.format(unique)}",), gpus)
        assert request is not None and [gpu.index for gpu in select(request, gpus)] == [index]


@pytest.mark.parametrize(
    ("text", "minor", "unique"),
    [
        ("drm_render_minor 128\n", 128, 0),
        ("some_other_property 123\n", 0, 0),
        ("drm_render_minor 128\nunique_id 123\n", 128, 123),
        ("drm_render_minor 128\nsome_other_property value\n", 128, 0),
    ],
)
def test_properties_of_a_node(tmp_path: Path, text: str, minor: int, unique: int) -> None:
    """Four rows: a property that is there and one that is not, which is 0, as a number and as text."""
    host = Host(tmp_path)
    rest = f"\ncpu_cores_count 0\ngfx_target_version 90402\nlocation_id {amd.location(FIRST)}\ndomain 0"
    host.write(f"{amd.KFD}/nodes/1/properties", text.rstrip("\n") + rest)
    host.link("sys/class/kfd/kfd", "sys/devices/virtual/kfd/kfd")
    found = [(node.value("drm_render_minor"), node.value("unique_id")) for node in kfd_nodes(str(tmp_path))]
    assert found == [(minor, unique)]


@pytest.mark.parametrize(("name", "minor", "mode", "gid"), [("card0", 0, 0o666, VIDEO), ("renderD128", 128, 0o666, RENDER)])
def test_a_node_is_as_the_host_has_it(tmp_path: Path, name: str, minor: int, mode: int, gid: int) -> None:
    """Two rows of three: number, mode and group."""
    host = Host(tmp_path)
    host.node(f"dri/{name}", 226, minor, gid, mode)
    host.write(f"sys/class/drm/{name}/dev", f"226:{minor}")
    require_nodes(host.real_nodes)
    node = node_of_sysfs(str(tmp_path), f"{tmp_path}/sys/class/drm/{name}/dev", f"/dev/dri/{name}")
    assert node is not None and node.exists
    assert (node.major, node.minor, node.mode, node.gid) == (226, minor, mode, gid)


def test_a_node_that_is_not_there(tmp_path: Path) -> None:
    """The third row.  AMD's program takes 0:0 for its number; here it does not exist."""
    host = Host(tmp_path)
    host.write("sys/class/drm/card999/dev", "226:999")
    node = node_of_sysfs(str(tmp_path), f"{tmp_path}/sys/class/drm/card999/dev", "/dev/dri/card999")
    assert node is not None and not node.exists


ID0, ID1 = "0xef2c1799a1f3e2ed", "0x1234567890abcdef"


@pytest.mark.parametrize(
    ("entry", "indices"),
    [
        ("AMD_VISIBLE_DEVICES=0,1,2", [0, 1]),
        (f"AMD_VISIBLE_DEVICES={ID0},{ID1}", [0, 1]),
        (f"DOCKER_RESOURCE_GPU={ID0.removeprefix('0x')}", [0]),
        (f"AMD_VISIBLE_DEVICES=1,{ID0}", [0, 1]),
        ("AMD_VISIBLE_DEVICES=0xdeadbeefdeadbeef", []),
        (f"AMD_VISIBLE_DEVICES=0,{ID0}", [0, 0]),
    ],
)
def test_what_an_environment_asks_for(tmp_path: Path, entry: str, indices: list[int]) -> None:
    """The six of AMD's, on a host with two GPUs."""
    host = Host(tmp_path)
    for index, (pci, unique) in enumerate(((FIRST, ID0), (SECOND, ID1))):
        amd.gpu(host, index, pci, 128 + index, 0x74A1, {}, 0, unique_id=int(unique, 16))
        host.add(Card(pci, "amdgpu", amd.AMD, 0x74A1, 1 + index, 128 + index))
    host.link("sys/class/kfd/kfd", "sys/devices/virtual/kfd/kfd")
    gpus = amd_gpus(str(tmp_path))
    request = read_request((entry,), gpus, ignore_unknown=True)
    assert request is not None and [gpu.index for gpu in select(request, gpus, ignore_unknown=True)] == indices


@pytest.mark.parametrize(
    ("env", "indices"),
    [
        ((f"DOCKER_RESOURCE_GPU={ID0},0xdeadbeefdeadbeef",), [0]),
        (("AMD_VISIBLE_DEVICES=all", f"DOCKER_RESOURCE_AMD=0xdeadbeefdeadbeef,{ID1}"), [1]),
        (("AMD_VISIBLE_DEVICES=0", "DOCKER_RESOURCE_GPU=0xdeadbeefdeadbeef"), [0]),
        (("AMD_VISIBLE_DEVICES=1", "DOCKER_RESOURCE_SSD=0"), [1]),
        (("AMD_VISIBLE_DEVICES=1", "DOCKER_RESOURCE_SSD=all"), [1]),
        (("AMD_VISIBLE_DEVICES=1", "DOCKER_RESOURCE_AMD_GPU=0"), [0]),
        (("AMD_VISIBLE_DEVICES=1", "DOCKER_RESOURCE_amd=0-5"), [0, 1]),
        (("DOCKER_RESOURCE_GPU=all", "AMD_VISIBLE_DEVICES=1"), [1]),
        (("AMD_VISIBLE_DEVICES=1", "DOCKER_RESOURCE_GPU=all"), [0, 1]),
        (("AMD_VISIBLE_DEVICES=1", f"DOCKER_RESOURCE_GPU=0,{ID1},7"), [0, 1]),
        (("AMD_VISIBLE_DEVICES=1", "DOCKER_RESOURCE_GPU=0,GPU-be3d3f2a"), [1]),
        (("AMD_VISIBLE_DEVICES=1", "DOCKER_RESOURCE_GPU=all,0"), [1]),
    ],
)
def test_swarms_variables_where_unknown_ids_are_passed_over(
    tmp_path: Path, env: tuple[str, ...], indices: list[int]
) -> None:
    """A variable of Swarm's counts if it names ids alone and one is a GPU of this host; by index if it is of GPUs."""
    host = Host(tmp_path)
    for index, (pci, unique) in enumerate(((FIRST, ID0), (SECOND, ID1))):
        amd.gpu(host, index, pci, 128 + index, 0x74A1, {}, 0, unique_id=int(unique, 16))
        host.add(Card(pci, "amdgpu", amd.AMD, 0x74A1, 1 + index, 128 + index))
    host.link("sys/class/kfd/kfd", "sys/devices/virtual/kfd/kfd")
    gpus = amd_gpus(str(tmp_path))
    request = read_request(env, gpus, ignore_unknown=True)
    assert request is not None and [gpu.index for gpu in select(request, gpus, ignore_unknown=True)] == indices
