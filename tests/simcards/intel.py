"""Intel's hosts: Arc cards under i915 and xe, virtual functions, and Gaudi accelerators."""

from __future__ import annotations

import tempfile
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.simcards import ACCEL_MAJOR, GIB, RENDER, Card, Host

INTEL, HABANA = 0x8086, 0x1DA3
A770, B580, PF, VF = "0000:03:00.0", "0000:04:00.0", "0000:07:00.0", "0000:07:00.1"


def xe_files(memory: int) -> dict[str, str]:
    """What xe says of a GPU in its directory."""
    return {
        "tile0/physical_vram_size_bytes": f"{memory:#x}",
        "tile0/gt0/freq0/act_freq": "2450",
        "tile0/gt0/freq0/max_freq": "2850",
        "tile0/gt0/freq0/throttle/status": "0",
    }


SENSORS = {
    "energy1_input": "812345678",
    "energy1_label": "card",
    "power1_max": "190000000",
    "temp2_label": "pkg",
    "temp2_input": "52000",
    "temp3_label": "vram",
    "temp3_input": "60000",
}
CARDS = (
    Card(A770, "i915", INTEL, 0x56A0, 0, 128, 0, "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0",
         {"drm/card0/gt/gt0/rps_act_freq_mhz": "2400", "drm/card0/gt/gt0/rps_max_freq_mhz": "2400"}, SENSORS),
    Card(B580, "xe", INTEL, 0xE20B, 1, 129, 1, "pci0000:80/0000:80:01.0", xe_files(12 * GIB), SENSORS),
)  # fmt: skip
FUNCTIONS = (
    Card(
        PF,
        "xe",
        INTEL,
        0xE211,
        2,
        130,
        1,
        "pci0000:80/0000:80:02.0",
        {**xe_files(24 * GIB), "sriov_totalvfs": "12"},
        SENSORS,
    ),
    Card(VF, "xe", INTEL, 0xE211, 3, 131, 1, "pci0000:80/0000:80:02.0", {}, {}, PF),
)


def arc(path: Path, functions: bool = True, first: int = 0) -> Host:
    """An Arc A770 under i915, an Arc B580 under xe, and with *functions* an Arc Pro B60 that is divided (SR-IOV).

    *first* is added to the minors: another one keeps tests apart that look at all containers of this machine.
    """
    host = Host(path)
    host.majors(drm=226)
    for card in (*CARDS, *(FUNCTIONS if functions else ())):
        files = {name.replace(f"card{card.card}", f"card{card.card + first}"): text for name, text in card.files.items()}
        host.add(replace(card, card=card.card + first, render=card.render + first, files=files))
    return host


@contextmanager
def arc_for_containers(place: Path, first: int) -> Iterator[Host]:
    """:func:`arc` in a new directory below *place*, which any user may look at, with real nodes: skips without root."""
    with tempfile.TemporaryDirectory(dir=place) as directory:
        Path(directory).chmod(0o755)
        host = arc(Path(directory), first=first)
        if not host.real_nodes:
            raise unittest.SkipTest("device nodes need root")  # tools/demo imports this, and has no pytest
        yield host


def gaudi(path: Path, count: int = 2) -> Host:
    """*count* Gaudi 2: an accelerator node and a control node of each, and its port of RDMA."""
    host = Host(path)
    host.majors(accel=ACCEL_MAJOR, infiniband_verbs=231)
    for i in range(count):
        pci = f"0000:{0x19 + i:02x}:00.0"
        directory = f"sys/devices/pci0000:18/0000:18:00.0/{pci}"
        for name, content in {"vendor": f"{HABANA:#06x}", "device": "0x1020", "class": "0x120000", "numa_node": "0"}.items():
            host.write(f"{directory}/{name}", content)
        host.link(f"sys/bus/pci/devices/{pci}", directory)
        host.link(f"sys/bus/pci/drivers/habanalabs/{pci}", directory)
        for name, minor in ((f"accel{i}", i), (f"accel_controlD{i}", 64 + i)):
            host.write(f"{directory}/accel/{name}/dev", f"{ACCEL_MAJOR}:{minor}")
            host.link(f"{directory}/accel/{name}/device", directory)
            host.link(f"sys/class/accel/{name}", f"{directory}/accel/{name}")
            host.node(f"accel/{name}", ACCEL_MAJOR, minor, RENDER)
        host.write(f"{directory}/infiniband_verbs/uverbs{i}/dev", f"231:{192 + i}")
        host.node(f"infiniband/uverbs{i}", 231, 192 + i, 0, 0o666)
    return host
