"""AMD's GPUs and partitions: which there are, in which order, by which keys, with which links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.gpu.amd.host import PCIE, XGMI, amd_gpus, kfd_node, kfd_nodes, links
from tests.simcards import GIB, Host, amd

#: (domain, location_id of the first of four partitions, its render minor) in a host of eight MI308X in QPX.
MI308 = (
    (0, 2560, 128, "0000:0a:00.0"), (0, 32768, 136, "0000:80:00.0"), (0, 41984, 144, "0000:a4:00.0"),
    (0, 51200, 152, "0000:c8:00.0"), (1, 2816, 160, "0001:0b:00.0"), (1, 33024, 168, "0001:81:00.0"),
    (1, 42240, 176, "0001:a5:00.0"), (1, 51456, 184, "0001:c9:00.0"),
)  # fmt: skip


def test_render_minors_lead_to_the_pci_addresses_that_amd_finds(tmp_path: Path) -> None:
    """The 32 rows of AMD's own test."""
    host = Host(tmp_path)
    expected = {}
    for i, (domain, location, render, pci) in enumerate(MI308):
        for n in range(4):
            facts = {"location_id": location + n, "domain": domain, "gfx_target_version": 90402}
            amd.gpu(host, 2 + 4 * i + n, pci, render + n, 0x74A2, {}, 0, **facts)
            expected[render + n] = (pci, n)
    host.link("sys/class/kfd/kfd", "sys/devices/virtual/kfd/kfd")
    found = kfd_nodes(str(tmp_path))
    assert {node.value("drm_render_minor"): (node.pci, node.partition) for node in found} == expected


def test_whole_gpus_are_in_the_order_of_their_addresses(tmp_path: Path) -> None:
    host = amd.mi210(tmp_path)
    gpus = amd_gpus(str(host.path))
    assert [gpu.key for gpu in gpus] == sorted([pci for pci, _ in amd.MI210])
    renders = dict(amd.MI210)
    for index, gpu in enumerate(gpus):
        assert gpu.index == index
        assert [node.path for node in gpu.drm.nodes] == [f"/dev/dri/{kind}" for kind in _names(renders[gpu.key])]
        assert (gpu.model, gpu.memory, gpu.target) == ("AMD Instinct MI210", 64 * GIB, "gfx90a")
        assert (gpu.compute_units, gpu.profile, gpu.partition) == (104, "", -1)
    first = next(gpu for gpu in gpus if gpu.key == amd.MI210[0][0])
    assert first.unique_ids == (f"{amd.unique_id(0):016x}",)
    assert (first.numa_node, first.drm.pcie_root, first.drm.vendor, first.drm.device) == (0, "pci0000:00", 0x1002, 0x740F)
    assert first.drm.by_path == (
        ("/dev/dri/by-path/pci-0000:63:00.0-card", "../card1"),
        ("/dev/dri/by-path/pci-0000:63:00.0-render", "../renderD128"),
    )
    for path, text in first.drm.by_path:
        assert (host.path / path[1:]).readlink() == Path(text)  # as udev has them
    if host.real_nodes:
        assert [(node.exists, node.mode, node.gid) for node in first.drm.nodes] == [(True, 0o660, 44), (True, 0o660, 992)]
        kfd = kfd_node(str(host.path))
        assert kfd is not None and (kfd.exists, kfd.mode, kfd.gid) == (True, 0o660, 992)


def _names(render: int) -> tuple[str, str]:
    return f"card{render - 127}", f"renderD{render}"


def test_links_have_weights_and_types(tmp_path: Path) -> None:
    amd.mi210(tmp_path)
    gpus = amd_gpus(str(tmp_path))
    found = links(str(tmp_path), gpus)
    hives = {gpu.index: gpu.kfd.value("hive_id") for gpu in gpus}
    assert len(set(hives.values())) == 2
    for gpu in gpus:
        expected = [
            (peer.index, XGMI, 15) if hives[peer.index] == hives[gpu.index] else (peer.index, PCIE, 72)
            for peer in gpus
            if peer.index != gpu.index
        ]
        assert list(found[gpu.index]) == expected


def test_partitions_stand_beside_their_gpu_by_their_render_nodes(tmp_path: Path) -> None:
    """Two GPUs, for directories sort as text: amdgpu_xcp_10 comes before amdgpu_xcp_2."""
    amd.mi300x(tmp_path, gpus=2)
    gpus = amd_gpus(str(tmp_path))
    assert [gpu.key for gpu in gpus] == [f"0000:{bus}:00.0/{n}" for bus in ("05", "25") for n in range(8)]
    assert [gpu.drm.name for gpu in gpus][:3] == [amd.MI300X, "amdgpu_xcp_0", "amdgpu_xcp_1"]
    assert {(gpu.profile, gpu.memory, gpu.model, gpu.compute_units) for gpu in gpus} == {
        ("cpx_nps4", 48 * GIB, "AMD Instinct MI300X OAM", 38)
    }
    assert [gpu.numa_node for gpu in gpus] == [0] * 8 + [1] * 8
    assert gpus[9].drm.by_path[1] == ("/dev/dri/by-path/platform-amdgpu_xcp_7-render", "../renderD137")
    assert [link for link in links(str(tmp_path), gpus)[0] if link[0] in (1, 8)] == [(1, XGMI, 13), (8, XGMI, 41)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("properties", b"\xff\xfe\x00" * 100),
        ("properties", b"gfx_target_version 90010\n" + b"x" * (8 << 20)),
        ("properties", b"gfx_target_version 99999999999999999999999\ndrm_render_minor 128"),
        ("properties", b"gfx_target_version 90010\ndrm_render_minor -1"),
        ("properties", b"gfx_target_version 90010\ndrm_render_minor 130"),  # another one's
        ("properties", None),
    ],
)
def test_a_node_that_says_nonsense_is_no_gpu_and_the_others_stay(tmp_path: Path, name: str, content: bytes | None) -> None:
    amd.mi210(tmp_path)
    file = tmp_path / amd.KFD / "nodes/2" / name
    file.unlink()
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    assert [gpu.key for gpu in amd_gpus(str(tmp_path))] == sorted([pci for pci, _ in amd.MI210[1:]])


def test_two_nodes_of_one_partition_are_one_device(tmp_path: Path) -> None:
    host = amd.mi300x(tmp_path)
    text = (host.path / amd.KFD / "nodes/4/properties").read_text()
    host.write(f"{amd.KFD}/nodes/4/properties", text.replace("location_id 1282", "location_id 1281"))
    assert [gpu.partition for gpu in amd_gpus(str(tmp_path))] == [0, 1, 3, 4, 5, 6, 7]


def test_without_amdgpu_there_is_none(tmp_path: Path) -> None:
    assert amd_gpus(str(tmp_path)) == ()
