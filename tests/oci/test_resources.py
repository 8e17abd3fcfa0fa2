"""Reading linux.resources: Go's zero values, ranges, and the JSON path of every mistake."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.oci.resources import (
    BlockIO,
    Cpu,
    DeviceRule,
    HugepageLimit,
    Memory,
    Rdma,
    Resources,
    ThrottleDevice,
    WeightDevice,
    read_resources,
)

EVERY_MEMBER = ("devices", "memory", "cpu", "pids", "blockIO", "hugepageLimits", "rdma", "unified", "network")


@pytest.mark.parametrize("document", [{}, dict.fromkeys(EVERY_MEMBER)], ids=["absent", "null"])
def test_null_is_absent(document: dict[str, Any]) -> None:
    assert read_resources(document) == Resources()


def test_empty_members_are_zero_values() -> None:
    read = read_resources({"memory": {}, "cpu": {}, "blockIO": {}, "pids": {}})
    assert read == Resources(memory=Memory(), cpu=Cpu(), block_io=BlockIO(), pids_limit=None)


@pytest.mark.parametrize(
    ("access", "read"), [("rwa", "rw"), ("mwr", "rwm"), ("rr", "r"), ("r w", "rw"), ("RWM", ""), ("a", "")]
)
def test_letters_of_device_access_that_say_nothing(access: str, read: str) -> None:
    """runc ignores them, and its own tests write "rwa"."""
    (rule,) = read_resources({"devices": [{"allow": True, "type": "c", "major": 1, "minor": 11, "access": access}]}).devices
    assert rule.access == read


def test_null_inside_members_is_absent() -> None:
    read = read_resources({"memory": {"limit": None, "swap": None}, "cpu": {"shares": None, "burst": None, "cpus": None}})
    assert (read.memory, read.cpu) == (Memory(), Cpu())


def test_docker_run() -> None:
    document = {
        "devices": [
            {"allow": False, "access": "rwm"},
            {"allow": True, "type": "c", "major": 1, "minor": 5, "access": "rwm"},
            {"allow": True, "type": "c", "major": 136, "minor": -1, "access": "mwr"},
            {"allow": True, "type": "b", "major": 8, "minor": None, "access": "r"},
        ],
        "memory": {"limit": 33554432, "swap": 67108864, "disableOOMKiller": False, "swappiness": 60, "kernel": 1},
        "cpu": {"shares": 0, "quota": 50000, "period": 100000, "realtimePeriod": 5},
        "pids": {"limit": -1},
        "blockIO": {"weight": 0, "leafWeight": 7},
        "network": {"classID": 1},
        "somethingNew": [1],
    }
    assert read_resources(document) == Resources(
        devices=(
            DeviceRule(False, "a", None, None, "rwm"),
            DeviceRule(True, "c", 1, 5, "rwm"),
            DeviceRule(True, "c", 136, None, "rwm"),
            DeviceRule(True, "b", 8, None, "r"),
        ),
        memory=Memory(limit=33554432, swap=67108864),
        cpu=Cpu(quota=50000, period=100000),
        pids_limit=-1,
        block_io=BlockIO(),
    )


def test_everything_else() -> None:
    throttle = [{"major": 8, "minor": 16, "rate": 1000}]
    document = {
        "memory": {"limit": -1, "reservation": 5, "checkBeforeUpdate": True},
        "cpu": {"burst": 0, "idle": 1, "cpus": "0-1", "mems": "0"},
        "blockIO": {
            "weight": 10,
            "weightDevice": [{"major": 8, "minor": 0, "weight": 1000, "leafWeight": 3}],
            "throttleReadBpsDevice": throttle,
            "throttleWriteBpsDevice": throttle,
            "throttleReadIOPSDevice": throttle,
            "throttleWriteIOPSDevice": [{"major": 8, "minor": 16}],
        },
        "hugepageLimits": [{"pageSize": "2MB", "limit": 0}, {"pageSize": "1GB", "limit": 18446744073709551615}],
        "rdma": {"mlx5_1": {"hcaHandles": 3}, "mlx4_0": {"hcaHandles": 0, "hcaObjects": 1000}},
        "unified": {"memory.high": "10M", "io.max": "8:0 rbps=1\n8:16 rbps=2"},
    }
    device = (ThrottleDevice(8, 16, 1000),)
    assert read_resources(document) == Resources(
        memory=Memory(limit=-1, reservation=5, check_before_update=True),
        cpu=Cpu(burst=0, idle=1, cpus="0-1", mems="0"),
        block_io=BlockIO(10, (WeightDevice(8, 0, 1000),), device, device, device, (ThrottleDevice(8, 16, 0),)),
        hugepage_limits=(HugepageLimit("2MB", 0), HugepageLimit("1GB", 18446744073709551615)),
        rdma={"mlx5_1": Rdma(3, None), "mlx4_0": Rdma(0, 1000)},
        unified={"memory.high": "10M", "io.max": "8:0 rbps=1\n8:16 rbps=2"},
    )


DEVICE = {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"devices": {}}, "r.devices: must be an array, not an object"),
        ({"devices": [DEVICE, 3]}, "r.devices[1]: must be an object, not a number"),
        ({"devices": [DEVICE, {**DEVICE, "access": ""}]}, "r.devices[1].access: device access at 1 field cannot be empty"),
        ({"devices": [{"allow": True}]}, "r.devices[0].access: device access at 0 field cannot be empty"),
        ({"devices": [{**DEVICE, "type": "p"}]}, 'r.devices[0].type: invalid cgroup device type "p", it must be a, b or c'),
        ({"devices": [{**DEVICE, "major": -2}]}, "r.devices[0].major: -2 is out of range"),
        ({"devices": [{**DEVICE, "minor": 1 << 32}]}, "r.devices[0].minor: 4294967296 is out of range"),
        ({"devices": [{**DEVICE, "allow": "yes"}]}, "r.devices[0].allow: must be true or false, not a string"),
        ({"memory": {"limit": "1g"}}, "r.memory.limit: must be an integer, not a string"),
        ({"memory": {"limit": -2}}, "r.memory.limit: -2 is out of range"),
        ({"memory": {"swap": 1.5}}, "r.memory.swap: must be an integer, not a number"),
        ({"memory": []}, "r.memory: must be an object, not an array"),
        ({"cpu": {"shares": -1}}, "r.cpu.shares: -1 is out of range"),
        ({"cpu": {"burst": True}}, "r.cpu.burst: must be an integer, not a boolean"),
        ({"cpu": {"idle": 2}}, "r.cpu.idle: 2 is out of range"),
        ({"cpu": {"cpus": "0\0"}}, "r.cpu.cpus: contains a null byte"),
        ({"pids": {"limit": "max"}}, "r.pids.limit: must be an integer, not a string"),
        ({"blockIO": {"weight": 9}}, "r.blockIO.weight: 9 is out of range, it must be from 10 to 1000"),
        (
            {"blockIO": {"weightDevice": [{"major": 8, "minor": 0, "weight": 1001}]}},
            "r.blockIO.weightDevice[0].weight: 1001 is out of range",
        ),
        (
            {"blockIO": {"throttleReadBpsDevice": [{"major": -1}]}},
            "r.blockIO.throttleReadBpsDevice[0].major: -1 is out of range",
        ),
        ({"hugepageLimits": [{"pageSize": "2MB"}, {"limit": 1}]}, 'r.hugepageLimits[1].pageSize: "" is not a page size'),
        (
            {"hugepageLimits": [{"pageSize": "../../x.2MB"}]},
            'r.hugepageLimits[0].pageSize: "../../x.2MB" is not a page size',
        ),
        ({"hugepageLimits": [{"pageSize": "02MB"}]}, 'r.hugepageLimits[0].pageSize: "02MB" is not a page size'),
        ({"hugepageLimits": [{"pageSize": "MB"}]}, 'r.hugepageLimits[0].pageSize: "MB" is not a page size'),
        ({"rdma": {"mlx5 hca_handle=max": {}}}, 'r.rdma: "mlx5 hca_handle=max" is not the name of an RDMA device'),
        ({"rdma": {"mlx5": {"hcaHandles": -1}}}, "r.rdma.mlx5.hcaHandles: -1 is out of range"),
        (
            {"unified": {"../memory.max": "1"}},
            'r.unified: unified resource "../memory.max" must be a file name (no slashes)',
        ),
        ({"unified": {"memory": "1"}}, 'r.unified: unified resource "memory" must be in the form CONTROLLER.PARAMETER'),
        ({"unified": {"..": "1"}}, 'r.unified: unified resource ".." must be in the form CONTROLLER.PARAMETER'),
        ({"unified": {"memory.max": 1}}, "r.unified.memory.max: must be a string, not a number"),
    ],
)
def test_mistakes_name_their_place(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_resources(document, "r")
    assert str(caught.value).startswith(message)
