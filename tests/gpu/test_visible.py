"""GPURUN_VISIBLE_DEVICES: GPUs of every maker by one variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.errors import ConfigError, GpuError
from gpurun.gpu.leases.choice import choose
from gpurun.gpu.leases.survey import survey
from gpurun.gpu.request.free import read_free_request
from gpurun.gpu.resolve import Inquiry, gpu_edits, may_ask
from gpurun.gpu.visible import makers_words
from tests.needs_nodes import require_nodes
from tests.simcards import Host, amd, intel
from tests.simdriver import Options, bus_id, make, uuid

CUDA = ("CUDA_VERSION=12.4", "NVIDIA_VISIBLE_DEVICES=all", "HOME=/")


@pytest.fixture
def arc(tmp_path: Path) -> Host:
    host = intel.arc(tmp_path / "host")
    require_nodes(host.real_nodes)
    return host


def edits(host: Host, value: str, *env: str) -> list[str]:
    made = gpu_edits(Inquiry((*env, f"GPURUN_VISIBLE_DEVICES={value}"), {}, False, host.env))
    return [node.path for node in made.device_nodes] if made is not None else []


@pytest.mark.parametrize("word", [intel.B580, "card1", "renderD129", "intel:1", " INTEL:1 "])
def test_a_gpu_by_each_of_its_names(arc: Host, word: str) -> None:
    assert edits(arc, word) == ["/dev/dri/card1", "/dev/dri/renderD129"]
    assert edits(arc, word, "GPURUN_DRI_CARDS=0") == ["/dev/dri/renderD129"]


def test_a_site_whose_containers_get_no_card_nodes(arc: Host) -> None:
    """By gpurun's own environment; what a container's says counts more."""

    def given(*env: str) -> list[str]:
        made = gpu_edits(Inquiry((*env, "GPURUN_VISIBLE_DEVICES=card1"), {}, False, {**arc.env, "GPURUN_DRI_CARDS": "0"}))
        return [node.path for node in made.device_nodes] if made is not None else []

    assert given() == ["/dev/dri/renderD129"]
    assert given("GPURUN_DRI_CARDS=1") == ["/dev/dri/card1", "/dev/dri/renderD129"]


def test_a_divided_gpu_by_the_address_of_the_whole(tmp_path: Path) -> None:
    """All its partitions, as with AMD's own variable; the others of the host are not given."""
    host = amd.mi300x(tmp_path / "host", gpus=2)
    words = makers_words((f"GPURUN_VISIBLE_DEVICES={amd.MI300X}",), host.env)
    names = ",".join([f"{amd.MI300X}/{i}" for i in range(amd.PARTITIONS)])
    assert words == (f"AMD_VISIBLE_DEVICES={names}",)
    with pytest.raises(GpuError, match="is not a GPU of this host"):
        makers_words(("GPURUN_VISIBLE_DEVICES=0000:06:00.0",), host.env)


def test_all_are_those_that_are_offered(arc: Host) -> None:
    assert edits(arc, "all") == [f"/dev/dri/{name}" for i in (0, 1, 3) for name in (f"card{i}", f"renderD{128 + i}")]
    assert edits(arc, "none") == edits(arc, "void") == edits(arc, "") == []
    assert edits(arc, f"{intel.VF},intel:0,card3") == [
        "/dev/dri/card3", "/dev/dri/renderD131", "/dev/dri/card0", "/dev/dri/renderD128",
    ]  # fmt: skip
    assert may_ask(("GPURUN_VISIBLE_DEVICES=all",))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("0", "a number needs a maker, such as 'intel:0': this host has intel:0 "),
        ("9", "a number needs a maker, such as 'intel:0': this host has intel:0 "),
        (intel.PF, f"GPU {intel.PF} is divided, and its virtual functions are what containers get: {intel.VF} .intel:2"),
        ("card2", f"GPU {intel.PF} is divided, and its virtual functions are what containers get: {intel.VF} .intel:2"),
        ("renderD132", "is not a GPU of this host"),
        ("../../dev/sda", "is not a GPU of this host"),
        ("all,intel:0", "is not a GPU of this host"),
        ("intel:0,", "is not a GPU of this host"),
        ("x" * 65536, "is not a GPU of this host"),
        ("intel:0," * 8192, "more than 1024 words"),
        ("free:2;vendor=nokia", "vendor"),
        ("free:0", "from 1 to"),
    ],
)
def test_what_is_refused_is_refused_in_a_sentence(arc: Host, value: str, error: str) -> None:
    with pytest.raises((ConfigError, GpuError), match=error) as raised:
        edits(arc, value)
    assert len(str(raised.value)) < 600 and "GPURUN_VISIBLE_DEVICES" in str(raised.value)


def test_a_host_without_gpus(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with pytest.raises(GpuError, match="no GPU that gpurun knows"):
        edits(host, "all")
    with pytest.raises(GpuError, match="no GPU that gpurun knows"):
        edits(host, "free")


def test_an_image_with_cuda_gets_the_gpus_that_are_named_and_no_others(tmp_path: Path) -> None:
    path = make(tmp_path / "host", Options(drm=False)).path
    host = intel.arc(path, functions=False)
    words = makers_words((*CUDA, "GPURUN_VISIBLE_DEVICES=intel:0"), host.env)
    assert words == ("CUDA_VERSION=12.4", "HOME=/", f"GPURUN_VISIBLE_DEVICES={intel.A770}", "NVIDIA_VISIBLE_DEVICES=void")
    words = makers_words((*CUDA, f"GPURUN_VISIBLE_DEVICES={bus_id(1)},card1"), host.env)
    assert words[2:] == (f"NVIDIA_VISIBLE_DEVICES={uuid(1)}", f"GPURUN_VISIBLE_DEVICES={intel.B580}")
    assert makers_words((*CUDA, "GPURUN_VISIBLE_DEVICES="), host.env) == (*CUDA, "GPURUN_VISIBLE_DEVICES=")
    if host.real_nodes:
        found = edits(host, "nvidia:0,intel:0", *CUDA)
        assert {"/dev/nvidia1", "/dev/nvidiactl", "/dev/dri/renderD128"} <= {*found}
        assert "/dev/nvidia0" not in found and "/dev/dri/renderD129" not in found


def test_free_gpus_are_of_the_one_maker_or_of_the_one_that_is_named(tmp_path: Path) -> None:
    one = intel.arc(tmp_path / "one")
    assert makers_words(("GPURUN_VISIBLE_DEVICES=free:2",), one.env) == ("GPURUN_VISIBLE_DEVICES=free:2",)
    two = intel.arc(make(tmp_path / "two", Options(drm=False)).path, functions=False)
    with pytest.raises(ConfigError, match="GPUs of nvidia and intel, say which"):
        makers_words(("GPURUN_VISIBLE_DEVICES=free:2",), two.env)
    words = makers_words((*CUDA, "GPURUN_VISIBLE_DEVICES=free:1;vendor=nvidia"), two.env)
    assert words[2:] == ("NVIDIA_VISIBLE_DEVICES=free:1;vendor=nvidia",)


def test_who_gets_free_gpus_is_told_which(arc: Host) -> None:
    def allocate(request: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (intel.VF,), ("a warning",)

    made = gpu_edits(Inquiry(("GPURUN_VISIBLE_DEVICES=free",), {}, False, arc.env, allocate=allocate))
    assert made is not None
    assert (made.env, made.warnings) == ((f"GPURUN_VISIBLE_DEVICES={intel.VF}",), ("a warning",))
    assert [node.path for node in made.device_nodes] == ["/dev/dri/card3", "/dev/dri/renderD131"]
    with pytest.raises(GpuError, match="leased by gpurun as the container's runtime"):
        edits(arc, "free")


def test_what_the_container_is_told(tmp_path: Path) -> None:
    """Its own GPUs, whatever its image says."""
    host = intel.arc(make(tmp_path / "host", Options(drm=False)).path, functions=False)
    require_nodes(host.real_nodes)

    def told(value: str, *env: str) -> tuple[str, ...] | None:
        made = gpu_edits(Inquiry((*env, f"GPURUN_VISIBLE_DEVICES={value}"), {}, False, host.env))
        return made.env if made is not None else None

    assert told("card1") == (f"GPURUN_VISIBLE_DEVICES={intel.B580}",)
    assert told("card1", *CUDA) == ("NVIDIA_VISIBLE_DEVICES=void", f"GPURUN_VISIBLE_DEVICES={intel.B580}")
    mine = f"NVIDIA_VISIBLE_DEVICES={uuid(0)},{uuid(1)}"
    assert told("all", *CUDA) == (mine, f"GPURUN_VISIBLE_DEVICES={uuid(0)},{uuid(1)},{intel.A770},{intel.B580}")
    assert told("none", *CUDA) == ("NVIDIA_VISIBLE_DEVICES=void", "GPURUN_VISIBLE_DEVICES=none")
    assert told("none") is None
    assert told("", "HOME=/") is None


def test_gpus_that_a_site_denies_are_not_named_in_the_container(tmp_path: Path) -> None:
    """NVIDIA's file keeps unprivileged containers from its GPUs: their programs are not told that they have them."""
    host = intel.arc(make(tmp_path / "host", Options(drm=False)).path, functions=False)
    require_nodes(host.real_nodes)
    config = host.path / "etc/nvidia-container-runtime/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")

    def told(value: str, privileged: bool = False) -> tuple[set[str], tuple[str, ...]]:
        made = gpu_edits(Inquiry((*CUDA, f"GPURUN_VISIBLE_DEVICES={value}"), {}, privileged, host.env))
        assert made is not None
        assert bool(made.warnings) is not privileged
        return {node.path for node in made.device_nodes}, made.env

    mine = f"{intel.A770},{intel.B580}"
    nodes, env = told("all")
    assert not [path for path in nodes if "nvidia" in path] and "/dev/dri/card0" in nodes
    assert env == ("NVIDIA_VISIBLE_DEVICES=void", f"GPURUN_VISIBLE_DEVICES={mine}")
    assert told("nvidia:0") == (set(), ("NVIDIA_VISIBLE_DEVICES=void", "GPURUN_VISIBLE_DEVICES=none"))
    assert told("all", True)[1][1] == f"GPURUN_VISIBLE_DEVICES={uuid(0)},{uuid(1)},{mine}"


def test_mig_devices_are_not_listed_under_the_index_of_their_gpu(tmp_path: Path) -> None:
    host = make(tmp_path / "host", Options(gpus=2, mig=((0, 1, 0), (0, 2, 0)), drm=False))
    with pytest.raises(GpuError) as raised:
        makers_words(("GPURUN_VISIBLE_DEVICES=x",), host.env)
    assert str(raised.value).endswith(f"there are nvidia:0 ({bus_id(0).lower()}), nvidia:1 ({bus_id(1).lower()})")


def test_virtual_functions_without_a_driver_are_not_promised(arc: Host) -> None:
    (arc.path / "sys/bus/pci/drivers/xe" / intel.VF).unlink()
    with pytest.raises(GpuError, match="the drivers of this host have none of them"):
        edits(arc, intel.PF)


def test_what_can_be_leased(arc: Host) -> None:
    units = survey(arc.env, ask=True).units
    assert [(unit.vendor, unit.key, unit.profile, unit.numbers) for unit in units] == [
        ("intel", intel.A770, "", ((226, 128),)),
        ("intel", intel.B580, "", ((226, 129),)),
        ("intel", intel.VF, "vf", ((226, 131),)),
    ]

    request = read_free_request("free:3", "GPURUN_VISIBLE_DEVICES", "intel")
    assert [unit.key for unit in choose(request, units, frozenset(), {})] == [intel.A770, intel.B580, intel.VF]
    (arc.path / "dev/dri/card1").unlink()
    assert [unit.unwell.rpartition("/")[2] for unit in survey(arc.env, ask=False).units] == ["", "card1", ""]


def test_gaudi(tmp_path: Path) -> None:
    host = intel.gaudi(tmp_path)
    require_nodes(host.real_nodes)
    made = gpu_edits(Inquiry(("HABANA_VISIBLE_DEVICES=1",), {}, False, host.env))
    assert made is not None
    names = ["/dev/accel/accel1", "/dev/accel/accel_controlD1", "/dev/infiniband/uverbs1"]
    assert [node.path for node in made.device_nodes] == names
    assert gpu_edits(Inquiry(("HABANA_VISIBLE_DEVICES=",), {}, False, host.env)) is None
