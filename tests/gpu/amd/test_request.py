"""What containers get that ask for AMD's GPUs: the words of AMD_VISIBLE_DEVICES, nodes, groups, udev's names, leases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.cdi.edits import ContainerEdits
from gpurun.errors import ConfigError, GpuError, GpurunError
from gpurun.gpu.amd.host import amd_gpus
from gpurun.gpu.amd.request import MAX_VALUE, AmdRequest, read_request, select
from gpurun.gpu.leases.survey import survey
from gpurun.gpu.request.free import FreeRequest
from gpurun.gpu.resolve import Inquiry, gpu_edits
from tests.needs_nodes import require_nodes
from tests.simcards import RENDER, VIDEO, Host, amd

FIRST, SECOND = "0000:43:00.0", "0000:63:00.0"  # of two MI210, by their addresses
ID0, ID1 = f"{amd.unique_id(1):x}", f"{amd.unique_id(0):x}"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return amd.mi210(tmp_path, count=2)


Allocate = Callable[[FreeRequest], tuple[tuple[str, ...], tuple[str, ...]]]


def asked(host: Host, *env: str, allocate: Allocate | None = None, cards: str = "") -> ContainerEdits | None:
    return gpu_edits(Inquiry(env, {}, False, {**host.env, "GPURUN_DRI_CARDS": cards}, allocate=allocate))


def needs_nodes(host: Host) -> None:
    require_nodes(host.real_nodes)


@pytest.mark.parametrize(
    ("value", "indices", "ours"),
    [
        ("all", [0, 1], True), ("All", [0, 1], True), ("ALL", [0, 1], True), ("aLL", [], False),
        ("0", [0], True), ("1", [1], True), ("0,1", [0, 1], True), ("1,0", [0, 1], True), ("2", [], False),
        ("0-1", [0, 1], True), ("0-5", [0, 1], True), ("1-0", [], False), ("-1", [], False), ("0,0", [0, 0], True),
        (f"0x{ID1}", [1], True), (f"0X{ID1.upper()}", [1], True), (ID0, [0], True), (ID0.upper(), [0], True),
        ("0x1234", [], False), ("123456789", [], False), ("0, 1", [0], True), ("all,0", [0], False), ("x", [], False),
        (f"{ID0},1", [0, 1], True), (f"0x{ID1},0-1", [0, 1, 1], True), ("1,2", [1], False),
    ],
)  # fmt: skip
def test_the_words_have_the_meaning_that_amd_gives_them(host: Host, value: str, indices: list[int], ours: bool) -> None:
    gpus = amd_gpus(str(host.path))
    request = AmdRequest(value, "AMD_VISIBLE_DEVICES")
    assert [gpu.index for gpu in select(request, gpus, ignore_unknown=True)] == indices
    if ours:
        assert {gpu.index for gpu in select(request, gpus)} == ({0, 1} if value == "0, 1" else set(indices))
    else:
        with pytest.raises(
            GpuError, match=f"unknown device .*: the AMD GPUs of this host are 0 = {FIRST}, 1 = {SECOND} \\("
        ):
            select(request, gpus)


def test_pci_addresses(host: Host, tmp_path: Path) -> None:
    gpus = amd_gpus(str(host.path))
    assert select(AmdRequest(SECOND, ""), gpus) == gpus[1:]
    parts = amd_gpus(str(amd.mi300x(tmp_path / "cpx").path))
    assert len(select(AmdRequest(amd.MI300X, ""), parts)) == amd.PARTITIONS
    assert [gpu.index for gpu in select(AmdRequest(f"{amd.MI300X}/3,0", ""), parts)] == [0, 3]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ((), None), (("AMD_VISIBLE_DEVICES=none",), None), (("AMD_VISIBLE_DEVICES=void",), None),
        (("AMD_VISIBLE_DEVICES=",), None), (("AMD_VISIBLE_DEVICES=0", "AMD_VISIBLE_DEVICES=1"), "1"),
        ((f"DOCKER_RESOURCE_GPU=0x{ID0}",), f"0x{ID0}"), (("DOCKER_RESOURCE_GPU=0",), None),
        (("DOCKER_RESOURCE_AMD_GPU=0-1",), None), (("DOCKER_RESOURCE_AMD_GPU=all",), None),
        (("DOCKER_RESOURCE_GPU=GPU-be3d3f2a", "AMD_VISIBLE_DEVICES=0"), "0"),
        (("AMD_VISIBLE_DEVICES=0", f"DOCKER_RESOURCE_GPU={ID0},{ID1}"), f"{ID0},{ID1}"),
        (("AMD_VISIBLE_DEVICES=0", "DOCKER_RESOURCE_LICENCE=all"), "0"), (("AMD_VISIBLE_DEVICES",), None),
    ],
)  # fmt: skip
def test_which_variable_counts(host: Host, env: tuple[str, ...], expected: str | None) -> None:
    found = read_request(env, amd_gpus(str(host.path)))
    assert (found.value if found is not None else None) == expected


def test_values_of_images_are_data(host: Host) -> None:
    with pytest.raises(ConfigError, match=r"is 65537 characters long, more than 65536 are not read"):
        asked(host, "AMD_VISIBLE_DEVICES=" + "0" * (MAX_VALUE + 1))
    for value in ("9" * 60000, "0-" + "9" * 60000, "\x1b[2J", "../../dev/kfd", "0x" + "f" * 60000, ",", "-", ":"):
        with pytest.raises(GpuError) as caught:
            asked(host, f"AMD_VISIBLE_DEVICES={value}")
        assert str(caught.value).isprintable() and len(str(caught.value)) < 2000, value
    assert asked(host, "DOCKER_RESOURCE_X=" + "0" * (MAX_VALUE + 1)) is None


def test_nodes_groups_and_names(host: Host) -> None:
    needs_nodes(host)
    made = asked(host, "AMD_VISIBLE_DEVICES=1")
    assert made is not None
    assert [(n.path, n.file_mode, n.gid) for n in made.device_nodes] == [
        ("/dev/dri/card1", 0o660, VIDEO), ("/dev/dri/renderD128", 0o660, RENDER), ("/dev/kfd", 0o660, RENDER),
    ]  # fmt: skip
    assert made.additional_gids == (VIDEO, RENDER) and made.numa_nodes == (0,)
    assert {link.path: link.target for link in made.links} == {
        f"/dev/dri/by-path/pci-{SECOND}-card": "../card1",
        f"/dev/dri/by-path/pci-{SECOND}-render": "../renderD128",
    }


@pytest.mark.parametrize("own", [False, True])
def test_without_cards(host: Host, own: bool) -> None:
    needs_nodes(host)
    env = ("AMD_VISIBLE_DEVICES=all", *([] if own else ["GPURUN_DRI_CARDS=0"]))
    made = asked(host, *env, cards="0" if own else "")
    assert made is not None and made.additional_gids == (RENDER,)
    assert {node.path for node in made.device_nodes} == {"/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/kfd"}


def test_partitions_are_devices(tmp_path: Path) -> None:
    host = amd.mi300x(tmp_path)
    needs_nodes(host)
    made = asked(host, "AMD_VISIBLE_DEVICES=0,2")
    assert made is not None
    assert [node.minor for node in made.device_nodes if "renderD" in node.path] == [128, 130]
    assert "/dev/dri/by-path/platform-amdgpu_xcp_1-render" in {link.path for link in made.links}


def test_a_host_that_cannot_serve(tmp_path: Path, host: Host) -> None:
    with pytest.raises(GpuError, match="this host has no AMD GPU that computes"):
        gpu_edits(Inquiry(("AMD_VISIBLE_DEVICES=all",), {}, False, {"GPURUN_SYSROOT": str(tmp_path / "none")}))
    (host.path / "dev/kfd").unlink(missing_ok=True)
    (host.path / "dev/kfd").write_text("no device")
    with pytest.raises(GpuError, match=r"/dev/kfd is not there|is not the character device"):
        asked(host, "AMD_VISIBLE_DEVICES=0")


def choosing(*names: str) -> tuple[list[FreeRequest], Allocate]:
    seen: list[FreeRequest] = []

    def allocate(request: FreeRequest) -> tuple[tuple[str, ...], tuple[str, ...]]:
        seen.append(request)
        return names, ("chosen",)

    return seen, allocate


@pytest.mark.parametrize("env", ["AMD_VISIBLE_DEVICES=free", "NVIDIA_VISIBLE_DEVICES=free;vendor=amd"])
def test_free_gpus_of_amd_under_either_variable(host: Host, env: str) -> None:
    needs_nodes(host)
    seen, allocate = choosing(SECOND)
    made = asked(host, env, allocate=allocate)
    assert made is not None and seen[0].vendor == "amd" and made.warnings == ("chosen",)
    assert f"AMD_VISIBLE_DEVICES={SECOND}" in made.env
    assert {node.path for node in made.device_nodes} == {"/dev/dri/card1", "/dev/dri/renderD128", "/dev/kfd"}


def test_free_gpus_of_a_maker_that_is_none(host: Host) -> None:
    seen, allocate = choosing()
    with pytest.raises(GpurunError, match="must be one of nvidia, amd"):
        asked(host, "AMD_VISIBLE_DEVICES=free;vendor=voodoo", allocate=allocate)
    with pytest.raises(GpuError, match="leased by gpurun as the container's runtime"):
        asked(host, "AMD_VISIBLE_DEVICES=free")
    assert not seen


def _mi210(path: Path) -> Host:
    return amd.mi210(path)


@pytest.mark.parametrize(("make", "parts"), [(_mi210, 0), (amd.mi300x, amd.PARTITIONS)])
def test_what_can_be_leased(tmp_path: Path, make: Callable[[Path], Host], parts: int) -> None:
    host = make(tmp_path)
    found = survey(host.env)
    assert len(found.units) == 8 and len({unit.key for unit in found.units}) == 8
    assert {unit.vendor for unit in found.units} == {"amd"}
    assert len([unit for unit in found.units if unit.parent]) == parts
    assert all(unit.memory > 0 and unit.numbers[0][0] == 226 for unit in found.units)
    first = found.units[0]
    assert len(first.peers) == (7 if parts else 3), "those of its hive, or of its GPU"


def test_processes_that_compute(host: Host) -> None:
    node = "sys/devices/virtual/kfd/kfd/topology/nodes/2"
    gpu_id = (host.path / node / "gpu_id").read_text().strip()
    host.write(f"sys/class/kfd/kfd/proc/41/vram_{gpu_id}", "4096")
    host.write(f"sys/class/kfd/kfd/proc/42/vram_{gpu_id}", "0")
    host.write("sys/class/kfd/kfd/proc/x/y", "0")
    assert survey(host.env).computing == ((SECOND, 41),) and survey(host.env, ask=False).computing == ()
