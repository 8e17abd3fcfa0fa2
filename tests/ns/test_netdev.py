"""``linux.netDevices`` on paper, and pyroute2 in the process that asks."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.linux.process import CLONE_NEWNET
from gpurun.ns.namespaces import Join, NamespacePlan
from gpurun.ns.netdev import NetDevice, plan_net_devices

NEW = NamespacePlan(CLONE_NEWNET)


def test_names() -> None:
    devices: dict[str, Any] = {"eth0": {"name": "inner"}, "eth1": {}, "eth2": {"name": "x%d"}, "eth3": {"name": "x%d"}}
    assert plan_net_devices(devices, NEW) == (
        NetDevice("eth0", "inner"),
        NetDevice("eth1", "eth1"),
        NetDevice("eth2", "x%d"),
        NetDevice("eth3", "x%d"),
    )
    joined = NamespacePlan(0, (Join("network", CLONE_NEWNET, "/run/netns/a"),))
    assert plan_net_devices({"eth0": {}}, joined) == (NetDevice("eth0", "eth0"),)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a:b", "a b", "a\tb", "x" * 16])
def test_impossible_names(name: str) -> None:
    with pytest.raises(ConfigError):
        plan_net_devices({name: {"name": "eth0"}}, NEW)
    if name:
        with pytest.raises(ConfigError) as raised:
            plan_net_devices({"eth0": {"name": name}}, NEW)
        assert raised.value.where == "linux.netDevices.eth0.name"


def test_two_devices_of_one_name() -> None:
    with pytest.raises(ConfigError, match=r'linux.netDevices.eth1.name: "a" is the name of another device'):
        plan_net_devices({"eth0": {"name": "a"}, "eth1": {"name": "a"}}, NEW)


def test_no_namespace_to_move_to() -> None:
    with pytest.raises(ConfigError, match="without a private NET namespace"):
        plan_net_devices({"eth0": {}}, NamespacePlan(0))
    assert plan_net_devices(None, NamespacePlan(0)) == ()
