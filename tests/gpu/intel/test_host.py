"""Intel's GPUs: which are offered, and what a container is given of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.errors import ConfigError, GpuError
from gpurun.gpu.host.drm_edits import drm_edits
from gpurun.gpu.intel.gaudi import accelerators, gaudi_edits, select
from gpurun.gpu.intel.host import intel_gpus
from tests.needs_nodes import require_nodes
from tests.simcards import GIB, intel


def test_a_gpu_with_virtual_functions_is_not_offered(tmp_path: Path) -> None:
    intel.arc(tmp_path)
    gpus = intel_gpus(str(tmp_path))
    assert [(gpu.index, gpu.key, gpu.model, gpu.memory) for gpu in gpus] == [
        (0, intel.A770, "Intel Arc A770", -1),
        (1, intel.B580, "Intel Arc B580", 12 * GIB),
        (2, intel.VF, "Intel Arc Pro B60", -1),
    ]
    assert gpus[2].label == f"Intel GPU 2 ({intel.VF}, a virtual function of {intel.PF})"
    assert [gpu.cdi_names for gpu in gpus[:2]] == [("card0", "0000-03-00-0-0x56a0"), ("card1", "0000-04-00-0-0xe20b")]


def test_a_container_is_given_nodes_links_and_groups_of_its_gpu_alone(tmp_path: Path) -> None:
    host = intel.arc(tmp_path)
    require_nodes(host.real_nodes)
    gpu = intel_gpus(str(tmp_path))[1]
    made = drm_edits(((gpu.label, "intel:0", gpu.drm),))
    assert [(n.path, n.major, n.minor, n.file_mode, n.gid) for n in made.device_nodes] == [
        ("/dev/dri/card1", 226, 1, 0o660, 44),
        ("/dev/dri/renderD129", 226, 129, 0o660, 992),
    ]
    assert [(link.path.rpartition("/")[2], link.target) for link in made.links] == [
        ("pci-0000:04:00.0-card", "../card1"),
        ("pci-0000:04:00.0-render", "../renderD129"),
    ]
    assert (made.additional_gids, made.numa_nodes) == ((44, 992), (1,))
    only = drm_edits(((gpu.label, "intel:0", gpu.drm),), cards=False)
    assert ([n.path for n in only.device_nodes], only.additional_gids) == (["/dev/dri/renderD129"], (992,))
    assert [link.target for link in only.links] == ["../renderD129"]
    (tmp_path / "dev/dri/renderD129").chmod(0o666)
    gpu = intel_gpus(str(tmp_path))[1]
    assert drm_edits(((gpu.label, "intel:0", gpu.drm),)).additional_gids == (44,)  # all may open the other one


def test_a_node_that_is_another_file_is_refused(tmp_path: Path) -> None:
    intel.arc(tmp_path)
    node = tmp_path / "dev/dri/renderD128"
    node.unlink(missing_ok=True)
    os.mkfifo(node)
    gpu = intel_gpus(str(tmp_path))[0]
    with pytest.raises(GpuError, match=r"renderD128 is not the character device 226:128"):
        drm_edits(((gpu.label, "intel:0", gpu.drm),), cards=False)


@pytest.mark.parametrize("text", ["99999999999999999999", "0xzz", "-5", "", "0x" + "f" * 40])
def test_memory_that_is_no_number_is_not_known(tmp_path: Path, text: str) -> None:
    host = intel.arc(tmp_path)
    host.write(f"{intel.CARDS[1].path}/tile0/physical_vram_size_bytes", text)
    assert intel_gpus(str(tmp_path))[1].memory == -1


def test_gaudi_nodes_and_no_network(tmp_path: Path) -> None:
    host = intel.gaudi(tmp_path)
    known = accelerators(str(tmp_path))
    assert [(one.index, one.pci) for one in known] == [(0, "0000:19:00.0"), (1, "0000:1a:00.0")]
    assert select("all", known) == known
    assert select("1,1", known) == known[1:]
    assert select(" 1 , 0", known) == (known[1], known[0])
    assert select("", known) == select("void", known) == ()
    if host.real_nodes:
        made = gaudi_edits(known[1:])
        assert [n.path for n in made.device_nodes] == [
            "/dev/accel/accel1",
            "/dev/accel/accel_controlD1",
            "/dev/infiniband/uverbs1",
        ]
        assert (made.additional_gids, made.net_devices, made.mounts) == ((992,), (), ())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("2", GpuError),
        ("0,7", GpuError),
        ("all,0", ConfigError),
        ("-1", ConfigError),
        ("0" * 65536, ConfigError),
        ("x,", ConfigError),
    ],
)
def test_gaudi_that_is_not_there(tmp_path: Path, text: str, error: type[Exception]) -> None:
    intel.gaudi(tmp_path)
    with pytest.raises(error) as raised:
        select(text, accelerators(str(tmp_path)))
    assert len(str(raised.value)) < 400
