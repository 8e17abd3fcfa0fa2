"""Devices with DRM nodes: read from sysfs, whatever stands there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.gpu.host import reads
from gpurun.gpu.host.drm import devices_of_driver, hexadecimal, is_pci_address
from gpurun.gpu.host.facts import Listener, first_change
from tests.simcards import Host, intel


@pytest.mark.parametrize("text", ["0000:03:00.0", "0001:ff:1f.7", "10000:e1:00.0"])
def test_addresses(text: str) -> None:
    assert is_pci_address(text)


@pytest.mark.parametrize(
    "text", ["", "03:00.0", "0000:03:00", "0000:03:00.8", "0000:3:00.0", "000x:03:00.0", "0000:03:00.0\n", "0000:03:00.0/.."]
)
def test_what_is_no_address(text: str) -> None:
    assert not is_pci_address(text)


def test_a_card_and_its_place(tmp_path: Path) -> None:
    host = intel.arc(tmp_path)
    (old,) = devices_of_driver(str(tmp_path), "i915")
    assert (old.name, old.vendor, old.device, old.numa_node, old.pcie_root) == (intel.A770, 0x8086, 0x56A0, 0, "pci0000:00")
    new, physical, virtual = devices_of_driver(str(tmp_path), "xe")
    assert (new.pcie_root, new.physfn, new.functions) == ("pci0000:80", "", 0)
    assert (physical.physfn, physical.functions) == ("", 1)
    assert (virtual.name, virtual.physfn, virtual.functions) == (intel.VF, intel.PF, 0)
    assert [node.path for node in virtual.nodes] == ["/dev/dri/card3", "/dev/dri/renderD131"]
    assert all(node.exists for node in virtual.nodes) == host.real_nodes


FILE = intel.CARDS[1].path


def _fifo(host: Host, name: str) -> None:
    (host.path / name).unlink()
    os.mkfifo(host.path / name)


def _write(content: bytes) -> Callable[[Host, str], None]:
    return lambda host, name: host.write(name, content)


def _outside(host: Host, name: str) -> None:
    (host.path / name).unlink()
    (host.path / name).symlink_to("/etc/passwd")


HOSTILE = {"fifo": _fifo, "binary": _write(bytes(range(256)) * 64), "huge": _write(b"1" * (4 << 20)), "outside": _outside}


@pytest.mark.parametrize("name", ["vendor", "device", "numa_node", "drm/card1/dev", "drm/renderD129/dev"])
@pytest.mark.parametrize("how", HOSTILE)
def test_a_file_that_says_nonsense_tells_nothing(tmp_path: Path, name: str, how: str) -> None:
    host = intel.arc(tmp_path, functions=False)
    HOSTILE[how](host, f"{FILE}/{name}")
    (found,) = devices_of_driver(str(tmp_path), "xe")
    told = {
        "vendor": found.vendor == 0,
        "device": found.device == 0,
        "numa_node": found.numa_node == -1,
        "drm/card1/dev": found.card is None,
        "drm/renderD129/dev": found.render is None,
    }
    assert [name for name, nothing in told.items() if nothing] == [name]


def test_only_the_device_that_sysfs_names_is_a_node(tmp_path: Path) -> None:
    host = intel.arc(tmp_path)
    for name in ("renderD128", "renderD129", "renderD131"):
        (tmp_path / "dev/dri" / name).unlink(missing_ok=True)
    (tmp_path / "dev/dri/renderD128").symlink_to("/dev/null")
    host.node("dri/renderD129", 1, 3, 0)  # /dev/null itself
    os.mkfifo(tmp_path / "dev/dri/renderD131")
    devices = [*devices_of_driver(str(tmp_path), "i915"), *devices_of_driver(str(tmp_path), "xe")]
    assert [bool(device.render and device.render.exists) for device in devices] == [False, False, host.real_nodes, False]


def test_what_two_devices_claim_is_the_first_ones(tmp_path: Path) -> None:
    host = intel.arc(tmp_path)
    again = intel.FUNCTIONS[0]
    host.write(f"{again.path}/drm/renderD129/dev", "226:129")  # the B580's
    assert [device.name for device in devices_of_driver(str(tmp_path), "xe")] == [intel.B580, intel.VF]


def test_the_discovery_cache_sees_a_change(tmp_path: Path) -> None:
    host = intel.arc(tmp_path)
    changes: list[tuple[str, Callable[[], object]]] = [
        ("numa_node", lambda: host.write(f"{FILE}/numa_node", "0")),
        ("dev/dri/card1", lambda: os.chown(tmp_path / "dev/dri/card1", 0, 7)),
        ("sys/bus/pci/drivers/xe", (tmp_path / f"sys/bus/pci/drivers/xe/{intel.VF}").unlink),
    ]
    for expected, change in changes:
        looked = reads.listener = Listener()
        try:
            devices_of_driver(str(tmp_path), "xe")
        finally:
            reads.listener = None
        facts = looked.facts()
        assert facts is not None and first_change(facts) == ""
        change()
        assert expected in first_change(facts)


@pytest.mark.parametrize(
    ("text", "number"), [("0x56a0", 0x56A0), ("56A0", 0x56A0), ("", 0), ("0x", 0), ("-1", 0), ("0x56_a0", 0)]
)
def test_hexadecimal(text: str, number: int) -> None:
    assert hexadecimal(text) == number
    assert hexadecimal("0x10000", 0xFFFF) == 0
