"""Virtual GPUs, known by a capability of their configuration space: the hypervisor has written it, it may be anything."""

from __future__ import annotations

import pytest

from gpurun.gpu.nvidia.host.vgpu import hypervisor_driver

DRIVER = bytes([0, 22]) + b"550.90.05\0" + b"r550_00\0\0\0"


def space(*capabilities: tuple[int, bytes], loop: bool = False) -> bytes:
    """A configuration space with these capabilities: (number, data)."""
    made = bytearray(256)
    made[0x06] = 0x10
    at = 0x40
    made[0x34] = at if capabilities else 0
    for count, (number, data) in enumerate(capabilities):
        after = at + 3 + len(data)
        last = count == len(capabilities) - 1
        made[at : at + 3] = bytes([number, (0x40 if loop else 0) if last else after, 3 + len(data)])
        made[at + 3 : after] = data
        at = after
    return bytes(made)


def test_the_driver_of_the_hypervisor() -> None:
    assert hypervisor_driver(space((5, b"xx"), (9, b"VF" + DRIVER))) == ("550.90.05", "r550_00")
    other = bytes([3, 4, 7, 7])  # a record before it
    assert hypervisor_driver(space((9, b"VF" + other + DRIVER))) == ("550.90.05", "r550_00")


@pytest.mark.parametrize(
    "records", [b"", b"\3", bytes([3, 0, 7, 7]), bytes([3, 200]), bytes([0, 22]) + b"short", bytes([3, 4, 7])]
)
def test_a_virtual_gpu_that_says_nothing(records: bytes) -> None:
    assert hypervisor_driver(space((9, b"VF" + records))) == ("", "")


@pytest.mark.parametrize(
    "config",
    [b"", bytes(64), bytes(256), space((9, b"\1\0\0")), space((9, b"")), space((5, b"VF")), space((5, b"x"), loop=True)],
)
def test_a_gpu_that_is_none(config: bytes) -> None:
    assert hypervisor_driver(config) is None


def test_every_byte_may_be_wrong() -> None:
    good = space((5, b"xx"), (9, b"VF" + DRIVER))
    for at in range(256):
        for byte in (0, 1, 0x40, 0xFE, 0xFF):
            hypervisor_driver(good[:at] + bytes([byte]) + good[at + 1 :])
