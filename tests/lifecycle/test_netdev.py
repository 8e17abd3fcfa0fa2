"""``linux.netDevices``: devices of the host that move into the container's network namespace."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.not_on("runc 1.1", reason="does not know the field"),
    pytest.mark.not_on("runc 1.2", reason="does not know the field"),
]


def ip(*args: str) -> str:
    return subprocess.run(["ip", *args], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def device() -> Iterator[str]:
    """A device of the host that may be given away: one end of a pair, or a tap where the kernel has no veth."""
    name = f"gp{secrets.token_hex(4)}"
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", f"{name}p")
    except (OSError, subprocess.CalledProcessError):
        try:
            ip("tuntap", "add", "dev", name, "mode", "tap")
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no network device can be made here")
    yield name
    for left in (name, f"{name}p"):
        subprocess.run(["ip", "link", "del", left], capture_output=True, check=False)


def exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


@pytest.mark.conforms(
    "config-linux.md: Network Devices",
    level="MUST",
    what="`netDevices` are made available in the container: under the given name, with their addresses, up",
)
def test_device_moves_with_its_addresses(runtime: Runtime, bundle: MakeBundle, device: str) -> None:
    ip("addr", "add", "192.0.2.7/24", "brd", "+", "dev", device)
    ip("addr", "add", "2001:db8::7/64", "dev", device, "nodad")
    ip("link", "set", device, "up")
    b = bundle().sh("ip addr show dev inner; [ -e /sys/class/net/inner ] && echo seen")
    b.linux["netDevices"] = {device: {"name": "inner"}}
    out = runtime.output(b)
    assert "inet 192.0.2.7/24 brd 192.0.2.255 scope global" in out
    assert "inet6 2001:db8::7/64 scope global" in out
    assert "UP" in out.partition("<")[2].partition(">")[0].split(",")
    assert out.endswith("seen\n")
    assert not exists(device)


def test_device_keeps_its_name(runtime: Runtime, bundle: MakeBundle, device: str) -> None:
    b = bundle().args("ls", "/sys/class/net")
    b.linux["netDevices"] = {device: {}}
    assert device in runtime.output(b).split()


def test_sysctl_of_a_moved_device(runtime: Runtime, bundle: MakeBundle, device: str) -> None:
    """The devices are there before sysctls are set."""
    b = bundle().args("cat", "/proc/sys/net/ipv4/conf/inner/forwarding")
    b.linux["netDevices"] = {device: {"name": "inner"}}
    b.linux["sysctl"] = {"net/ipv4/conf/inner/forwarding": "1"}
    assert runtime.output(b).strip() == "1"


def test_into_a_joined_namespace_of_a_user_namespace(runtime: Runtime, bundle: MakeBundle, device: str) -> None:
    first = runtime.create(bundle().user_namespace())
    b = bundle().namespace("network", f"/proc/{first.pid}/ns/net").args("ls", "/sys/class/net")
    b.linux["netDevices"] = {device: {"name": "inner"}}
    assert "inner" in runtime.output(b).split()


def test_device_that_is_not_there(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle()
    b.linux["netDevices"] = {"nosuchdev0": {}}
    text = runtime.refused(b)
    assert "nosuchdev0" in text and "no such device" in text


@pytest.mark.conforms(
    "config-linux.md: Network Devices",
    level="MUST",
    what="if a device with the specified name already exists in the container namespace, MUST generate an error",
)
def test_name_that_is_taken(runtime: Runtime, bundle: MakeBundle, device: str) -> None:
    b = bundle()
    b.linux["netDevices"] = {device: {"name": "lo"}}
    assert device in runtime.refused(b)


@pytest.mark.conforms(
    "config-linux.md: Network Devices",
    level="MUST",
    what="... unless the name ends in `%d`: the kernel generates a unique one",
)
def test_a_template_of_a_name(runtime: Runtime, bundle: MakeBundle, device: str) -> None:
    b = bundle().args("ls", "/sys/class/net")
    b.linux["netDevices"] = {device: {"name": "gp%d"}}
    assert "gp0" in runtime.output(b).split()


@pytest.mark.gpurun_only
def test_needs_a_network_namespace(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().without_namespace("network")
    b.linux["netDevices"] = {"lo": {}}
    assert "linux.netDevices: unable to move network devices without a private NET namespace" in runtime.refused(b)
    assert os.path.exists("/sys/class/net/lo")
