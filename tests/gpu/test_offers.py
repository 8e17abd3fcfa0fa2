"""What a host has for somebody who asked for what it lacks: the end of errors, whichever maker they are about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.errors import GpuError
from gpurun.gpu.amd.doctor import examine
from gpurun.gpu.offers import generate_advice, idle_cards, no_card, offers_text
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.gpu.vendors import find_vendor
from tests.simcards import Host, amd, intel
from tests.simdriver import Options, make

AMDS = "; this host has 2 GPUs of AMD's (ask with AMD_VISIBLE_DEVICES)"
INTELS = "; this host has 3 GPUs of Intel's (ask with GPURUN_VISIBLE_DEVICES)"
GAUDIS = "; this host has 1 accelerator of Intel's that is not a GPU (ask with HABANA_VISIBLE_DEVICES)"
NVIDIAS = "; this host has 1 GPU of NVIDIA's (ask with NVIDIA_VISIBLE_DEVICES)"


def two_mi210(path: Path) -> Host:
    return amd.mi210(path, count=2)


def one_gaudi(path: Path) -> Host:
    return intel.gaudi(path, count=1)


def one_nvidia(path: Path) -> Host:
    return Host(make(path, Options(gpus=1, nodes=False)).path)


def card(host: Host, pci: str, vendor: int, driver: str = "", kind: str = "0x030000") -> None:
    for name, text in (("vendor", f"{vendor:#06x}"), ("class", kind)):
        host.write(f"sys/bus/pci/devices/{pci}/{name}", text)
    if driver:
        host.link(f"sys/bus/pci/devices/{pci}/driver", f"sys/bus/pci/drivers/{driver}")


@pytest.mark.parametrize(
    ("machine", "asked", "end"),
    [
        (two_mi210, "NVIDIA_VISIBLE_DEVICES=all", AMDS),
        (two_mi210, "HABANA_VISIBLE_DEVICES=0", AMDS),
        (intel.arc, "NVIDIA_VISIBLE_DEVICES=0", INTELS),
        (intel.arc, "AMD_VISIBLE_DEVICES=0", INTELS),
        (intel.arc, "HABANA_VISIBLE_DEVICES=all", INTELS),
        (one_gaudi, "NVIDIA_VISIBLE_DEVICES=all", GAUDIS),
        (one_gaudi, "AMD_VISIBLE_DEVICES=all", GAUDIS),
        (one_gaudi, "GPURUN_VISIBLE_DEVICES=all", GAUDIS),
        (one_gaudi, "GPURUN_VISIBLE_DEVICES=intel:0", GAUDIS),
        (one_gaudi, "GPURUN_VISIBLE_DEVICES=free", GAUDIS),
        (one_nvidia, "AMD_VISIBLE_DEVICES=all", NVIDIAS),
        (one_nvidia, "HABANA_VISIBLE_DEVICES=all", NVIDIAS),
        (Host, "NVIDIA_VISIBLE_DEVICES=all", "`gpurun gpu doctor` says what is missing"),
        (Host, "AMD_VISIBLE_DEVICES=all", "are there while the driver is loaded"),
        (Host, "GPURUN_VISIBLE_DEVICES=all", "this host has no GPU that gpurun knows"),
        (Host, "HABANA_VISIBLE_DEVICES=0", "HABANA_VISIBLE_DEVICES=0: this host has no Gaudi under the driver habanalabs"),
    ],
)
def test_who_asks_for_another_makers_is_told_what_there_is(
    tmp_path: Path, machine: Callable[[Path], Host], asked: str, end: str
) -> None:
    host = machine(tmp_path / "host")
    with pytest.raises(GpuError) as raised:
        gpu_edits(Inquiry((asked,), {}, False, host.env))
    assert str(raised.value).endswith(end)


def test_a_mistake_about_a_makers_own_gpus_tells_of_no_others(tmp_path: Path) -> None:
    host = amd.beside_nvidia(make(tmp_path / "host", Options(drm=False)).path)
    for asked in ("AMD_VISIBLE_DEVICES=9", "NVIDIA_VISIBLE_DEVICES=9"):
        with pytest.raises(GpuError, match="9: unknown device") as raised:
            gpu_edits(Inquiry((asked,), {}, False, host.env))
        assert "ask with" not in str(raised.value)
    both = "; this host has 2 GPUs of NVIDIA's (ask with NVIDIA_VISIBLE_DEVICES) and 2 GPUs of AMD's"
    assert offers_text(host.env).startswith(both)


def test_parts_are_not_counted_as_gpus(tmp_path: Path) -> None:
    two = amd.mi300x(tmp_path / "amd", gpus=2)
    assert offers_text(two.env) == "; this host has 2 GPUs of AMD's, divided into 16 parts (ask with AMD_VISIBLE_DEVICES)"
    (fine,) = [one.text for one in examine(str(two.path)) if (one.verdict, one.subject) == ("ok", "AMD's GPUs")]
    assert fine.startswith("2, divided into 16 parts: 0 = AMD Instinct MI300X OAM (0000:05:00.0/0), 1 = ")
    mig = make(tmp_path / "nvidia", Options(gpus=2, mig=((0, 1, 0),), nodes=False))
    assert offers_text({"GPURUN_SYSROOT": str(mig.path)}) == (
        "; this host has 2 GPUs of NVIDIA's, divided into 1 part (ask with NVIDIA_VISIBLE_DEVICES)"
    )


def test_cards_that_no_driver_has(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert idle_cards(host.env) == () and no_card(str(tmp_path)).startswith("no card of NVIDIA's, AMD's or Intel's is on")
    card(host, "0000:01:00.0", 0x1002)
    card(host, "0000:02:00.0", 0x1002, kind="0x120000")
    card(host, "0000:03:00.0", 0x8086, kind="0x038000")
    card(host, "0000:04:00.0", 0x8086, "vfio-pci")
    card(host, "0000:05:00.0", 0x8086, "xe")
    card(host, "0000:06:00.0", 0x1002, kind="0x040300")  # the sound of a card
    card(host, "0000:07:00.0", 0x1A03)  # a server's own display
    host.write("sys/bus/pci/devices/0000:08:00.0/vendor", b"\xff" * 9000)
    assert idle_cards(host.env) == (
        "the cards 0000:01:00.0, 0000:02:00.0 of AMD's have no driver: `modprobe amdgpu`",
        "the card 0000:03:00.0 of Intel's has no driver: `modprobe xe` or `modprobe i915`",
        "the card 0000:04:00.0 of Intel's is bound to vfio-pci: containers cannot have it",
    )
    with pytest.raises(GpuError, match="no GPU that gpurun knows; the cards 0000:01"):
        gpu_edits(Inquiry(("GPURUN_VISIBLE_DEVICES=all",), {}, False, host.env))


def test_which_cdi_file_is_to_be_made() -> None:
    assert generate_advice(("/etc/cdi", "/run/cdi"), find_vendor("nvidia")).endswith("/nvidia.yaml` describes NVIDIA's GPUs")
    text = generate_advice(("/etc/cdi", "/run/cdi"), find_vendor("amd"))
    assert text.startswith("`gpurun cdi generate --mode amd --output=") and text.endswith("/amd.yaml` describes AMD's GPUs")


def test_a_cdi_device_of_a_maker_that_the_host_has_nothing_of(tmp_path: Path) -> None:
    host = intel.arc(tmp_path / "arc")
    asked = Inquiry(("NVIDIA_VISIBLE_DEVICES=amd.com/gpu=0",), {}, False, host.env)
    with pytest.raises(
        GpuError, match=r"unresolvable CDI devices amd.com/gpu=0 .*: this host has no GPU of AMD's; this host has"
    ):
        gpu_edits(asked)
    asked = Inquiry(("NVIDIA_VISIBLE_DEVICES=intel.com/gpu=card0",), {}, False, host.env)
    with pytest.raises(GpuError, match="`gpurun cdi generate --mode intel --output="):
        gpu_edits(asked)
