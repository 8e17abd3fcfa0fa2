"""linux.resources as cgroup files: the conversions, the order, and what a missing controller means."""

from __future__ import annotations

import math
from errno import EINVAL, ENOENT
from typing import Any

import pytest

from gpurun.cgroup.resources import CgroupWrite, cpu_weight, io_weight, memory_swap_max, needs_domain, plan_resources
from gpurun.errors import ConfigError
from gpurun.oci.resources import Resources, read_resources

ALL = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma", "misc")


def plan(document: dict[str, Any], controllers: tuple[str, ...] = ALL, **more: Any) -> tuple[CgroupWrite, ...]:
    return plan_resources(read_resources(document), controllers, **more)


def files(document: dict[str, Any], controllers: tuple[str, ...] = ALL) -> list[tuple[str, str]]:
    return [(write.file, write.value) for write in plan(document, controllers)]


@pytest.mark.parametrize(
    ("shares", "weight"),
    [(1, 1), (2, 1), (1024, 100), (2000, 170), (262144, 10000), (1 << 40, 10000), (3, 2), (262143, 10000)],
)
def test_cpu_weight(shares: int, weight: int) -> None:
    assert cpu_weight(shares) == weight


def test_cpu_weight_is_the_formula_everywhere() -> None:
    for shares in range(3, 262144, 7):
        log = math.log2(shares)
        assert cpu_weight(shares) == math.ceil(math.pow(10, (log * log + 125 * log) / 612 - 7 / 34)), shares


@pytest.mark.parametrize(("weight", "converted"), [(10, 1), (500, 4950), (1000, 10000), (100, 910)])
def test_io_weight(weight: int, converted: int) -> None:
    assert io_weight(weight) == converted


@pytest.mark.parametrize(
    ("limit", "swap", "value"),
    [
        (0, 0, None),
        (100, 0, None),
        (-1, 0, "max"),
        (0, -1, "max"),
        (100, -1, "max"),
        (-1, -1, "max"),
        (-1, 50, "50"),
        (100, 100, "0"),
        (100, 250, "150"),
    ],
)
def test_memory_swap(limit: int, swap: int, value: str | None) -> None:
    assert memory_swap_max(limit, swap, "w") == value


@pytest.mark.parametrize(
    ("limit", "swap", "message"),
    [
        (0, 50, "linux.resources.memory.swap: unable to set swap limit without memory limit"),
        (100, 99, "linux.resources.memory.swap: memory+swap limit should be >= memory limit"),
    ],
)
def test_memory_swap_contradictions(limit: int, swap: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan({"memory": {"limit": limit, "swap": swap}})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, []),
        ({"memory": {}, "cpu": {"shares": 0, "cpus": ""}, "blockIO": {"weight": 0}, "pids": {}}, []),
        ({"pids": {"limit": 0}}, [("pids.max", "1")]),
        ({"pids": {"limit": -1}}, [("pids.max", "max")]),
        ({"pids": {"limit": 2048}}, [("pids.max", "2048")]),
        ({"memory": {"limit": 100, "swap": 300}}, [("memory.swap.max", "200"), ("memory.max", "100")]),
        ({"memory": {"limit": -1}}, [("memory.swap.max", "max"), ("memory.max", "max")]),
        ({"memory": {"reservation": 7}}, [("memory.low", "7")]),
        ({"memory": {"reservation": -1}}, [("memory.low", "max")]),
        ({"cpu": {"quota": 50000}}, [("cpu.max", "50000 100000")]),
        ({"cpu": {"period": 20000}}, [("cpu.max", "max 20000")]),
        ({"cpu": {"quota": -1, "period": 100000}}, [("cpu.max", "max 100000")]),
        ({"cpu": {"quota": -5}}, [("cpu.max", "max 100000")]),
        ({"cpu": {"shares": 2048, "idle": 0}}, [("cpu.idle", "0"), ("cpu.weight", "174")]),
        ({"cpu": {"shares": 2048, "idle": 1}}, [("cpu.idle", "1")]),
        ({"cpu": {"burst": 10}}, [("cpu.max.burst", "10")]),
        (
            {"cpu": {"burst": 10, "quota": 100, "period": 200}},
            [("cpu.max.burst", "10"), ("cpu.max", "100 200"), ("cpu.max.burst", "10")],
        ),
        ({"cpu": {"cpus": "0-1,3", "mems": "0"}}, [("cpuset.cpus", "0-1,3"), ("cpuset.mems", "0")]),
        (
            {
                "blockIO": {
                    "throttleWriteIOPSDevice": [{"major": 8, "minor": 0, "rate": 7}, {"major": 8, "minor": 1, "rate": 0}]
                }
            },
            [("io.max", "8:0 wiops=7"), ("io.max", "8:1 wiops=max")],
        ),
        (
            {
                "blockIO": {
                    "throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 1}],
                    "throttleWriteBpsDevice": [{"major": 8, "minor": 0, "rate": 2}],
                    "throttleReadIOPSDevice": [{"major": 8, "minor": 0, "rate": 3}],
                }
            },
            [("io.max", "8:0 rbps=1"), ("io.max", "8:0 wbps=2"), ("io.max", "8:0 riops=3")],
        ),
        (
            {"hugepageLimits": [{"pageSize": "2MB", "limit": 0}]},
            [("hugetlb.2MB.max", "0"), ("hugetlb.2MB.rsvd.max", "0")],
        ),
        (
            {"hugepageLimits": [{"pageSize": "1GB", "limit": 18446744073709551615}]},
            [("hugetlb.1GB.max", "max"), ("hugetlb.1GB.rsvd.max", "max")],
        ),
        (
            {"rdma": {"mlx5_1": {"hcaHandles": 3, "hcaObjects": 10000}, "mlx4_0": {"hcaObjects": 5}, "mlx3": {}}},
            [("rdma.max", "mlx5_1 hca_handle=3 hca_object=10000"), ("rdma.max", "mlx4_0 hca_object=5")],
        ),
        ({"unified": {"misc.max": "res_a 1\nres_b max"}}, [("misc.max", "res_a 1"), ("misc.max", "res_b max")]),
        (
            {"hugepageLimits": [{"pageSize": "64KB", "limit": 65536}]},
            [("hugetlb.64KB.max", "65536"), ("hugetlb.64KB.rsvd.max", "65536")],
        ),
        ({"rdma": {"mlx5_0": {"hcaHandles": 0}}}, [("rdma.max", "mlx5_0 hca_handle=0")]),
        (
            {"memory": {"limit": 100, "swap": -1, "reservation": 50}},
            [("memory.swap.max", "max"), ("memory.max", "100"), ("memory.low", "50")],
        ),
        ({"cpu": {"shares": 1024, "realtimeRuntime": 5, "realtimePeriod": 9}}, [("cpu.weight", "100")]),
        (
            {"unified": {"cgroup.max.depth": "3", "io.max": "8:0 rbps=1\n8:1 wbps=2\n", "cpuset.cpus": ""}},
            [("cgroup.max.depth", "3"), ("io.max", "8:0 rbps=1"), ("io.max", "8:1 wbps=2")],
        ),
    ],
)
def test_conversions(document: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert files(document) == expected


def test_order_is_runcs_and_unified_overrides() -> None:
    document = {
        "unified": {"pids.max": "5"},
        "rdma": {"d": {"hcaObjects": 1}},
        "hugepageLimits": [{"pageSize": "2MB", "limit": 1}],
        "cpu": {"shares": 5, "cpus": "0"},
        "blockIO": {"weight": 10},
        "memory": {"limit": 5},
        "pids": {"limit": 4},
    }
    controllers = [write.file.partition(".")[0] for write in plan(document)]
    assert controllers == ["pids", "memory", "io", "cpu", "cpuset", "hugetlb", "hugetlb", "rdma", "pids"]


def test_block_io_weight_prefers_bfq() -> None:
    document = {
        "blockIO": {"weight": 500, "weightDevice": [{"major": 8, "minor": 0, "weight": 10}, {"major": 8, "minor": 1}]}
    }
    one, device = plan(document)
    assert (one.file, one.value) == ("io.bfq.weight", "500")
    assert one.otherwise == CgroupWrite("io.weight", "4950", "linux.resources.blockIO.weight")
    assert (device.file, device.value) == ("io.bfq.weight", "8:0 10")
    assert device.otherwise == CgroupWrite("io.weight", "8:0 1", "linux.resources.blockIO.weightDevice[0]")


@pytest.mark.parametrize(
    ("document", "file", "ignored"),
    [
        ({"memory": {"limit": 5, "swap": 5}}, "memory.swap.max", (ENOENT,)),
        ({"memory": {"limit": 5, "swap": -1}}, "memory.swap.max", (ENOENT,)),
        ({"memory": {"limit": 5, "swap": 6}}, "memory.swap.max", ()),
        ({"memory": {"limit": 5}}, "memory.max", ()),
        ({"cpu": {"idle": 0}}, "cpu.idle", (ENOENT,)),
        ({"cpu": {"idle": 1}}, "cpu.idle", ()),
        ({"cpu": {"burst": 1}}, "cpu.max.burst", ()),
        ({"hugepageLimits": [{"pageSize": "2MB", "limit": 1}]}, "hugetlb.2MB.rsvd.max", (ENOENT,)),
        ({"hugepageLimits": [{"pageSize": "2MB", "limit": 1}]}, "hugetlb.2MB.max", ()),
    ],
)
def test_files_that_kernels_may_lack(document: dict[str, Any], file: str, ignored: tuple[int, ...]) -> None:
    assert [write.ignore for write in plan(document) if write.file == file] == [ignored]


def test_a_burst_may_fail_only_before_the_quota() -> None:
    first, _, last = plan({"cpu": {"burst": 10, "quota": 100}})
    assert (first.ignore, last.ignore) == ((EINVAL,), ())


def test_where_names_the_member() -> None:
    document = {"cpu": {"period": 5}, "hugepageLimits": [{"pageSize": "2MB", "limit": 1}], "unified": {"cgroup.freeze": "0"}}
    assert [write.where for write in plan(document, json_path="r")] == [
        "r.cpu.period",
        "r.hugepageLimits[0].limit",
        "r.hugepageLimits[0].limit",
        "r.unified.cgroup.freeze",
    ]


@pytest.mark.parametrize(
    "document",
    [
        {"cpu": {"shares": 1024}},  # plain `ctr run`
        {"cpu": {"shares": 0, "quota": 0, "period": 0, "cpus": ""}},  # docker
        {"cpu": {"quota": -1, "period": 100000, "idle": 0, "burst": 0}},
        {"memory": {"limit": -1, "swap": -1, "reservation": -1}},
        {"memory": {"limit": 0, "swap": 0, "swappiness": 0, "disableOOMKiller": True, "kernel": 5}},
        {"pids": {"limit": -1}},
        {"blockIO": {"weight": 0, "weightDevice": [{"major": 8, "minor": 0}]}},
        {"blockIO": {"throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 0}]}},
        {
            "hugepageLimits": [
                {"pageSize": "2MB", "limit": 18446744073709551615},
                {"pageSize": "2MB", "limit": (1 << 63) - 1},
            ]
        },
        {"rdma": {"mlx": {}}},
        {"network": {"classID": 1}},
        {"unified": {"memory.high": "max", "memory.oom.group": "0", "cpu.weight": "100", "io.weight": "default 100"}},
    ],
)
def test_nothing_to_enforce_needs_no_controller(document: dict[str, Any]) -> None:
    assert files(document, ()) == []


@pytest.mark.parametrize(
    ("document", "where", "controller"),
    [
        ({"cpu": {"shares": 512}}, "cpu.shares", "cpu"),
        ({"cpu": {"quota": 1000}}, "cpu.quota", "cpu"),
        ({"cpu": {"idle": 1}}, "cpu.idle", "cpu"),
        ({"cpu": {"cpus": "0"}}, "cpu.cpus", "cpuset"),
        ({"memory": {"limit": 1 << 30}}, "memory.limit", "memory"),
        ({"memory": {"limit": -1, "swap": 100}}, "memory.swap", "memory"),
        ({"memory": {"reservation": 5}}, "memory.reservation", "memory"),
        ({"pids": {"limit": 0}}, "pids.limit", "pids"),
        ({"blockIO": {"weight": 500}}, "blockIO.weight", "io"),
        (
            {"blockIO": {"throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 9}]}},
            "blockIO.throttleReadBpsDevice[0]",
            "io",
        ),
        ({"hugepageLimits": [{"pageSize": "2MB", "limit": 0}]}, "hugepageLimits[0].limit", "hugetlb"),
        ({"rdma": {"mlx": {"hcaObjects": 1}}}, "rdma.mlx", "rdma"),
    ],
)
def test_a_limit_without_its_controller_is_refused(document: dict[str, Any], where: str, controller: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(document, tuple(name for name in ALL if name != controller), bound_to_v1=("cpu", "memory"))
    text = str(caught.value)
    assert text.startswith(f'linux.resources.{where}: the cgroup v2 controller "{controller}" is not available')
    bound = controller in ("cpu", "memory")
    assert ("bound to cgroup v1" in text) is bound
    assert ("systemd.unified_cgroup_hierarchy=1 (or cgroup_no_v1=all)" in text) is bound


def test_unified_without_its_controller_has_runcs_text() -> None:
    with pytest.raises(ConfigError) as caught:
        plan({"unified": {"memory.oom.group": "1"}}, ("cpu",))
    assert 'unified resource "memory.oom.group" can\'t be set: controller "memory" not available' in str(caught.value)


def test_defaults_are_written_where_the_controller_is() -> None:
    assert files({"cpu": {"shares": 1024}}, ("cpu",)) == [("cpu.weight", "100")]


def test_unknown_huge_page_size() -> None:
    document = {"hugepageLimits": [{"pageSize": "3MB", "limit": 0}]}
    with pytest.raises(ConfigError) as caught:
        plan(document, hugepage_sizes=("2MB", "1GB"))
    assert str(caught.value) == (
        "linux.resources.hugepageLimits[0].pageSize: this kernel has no huge pages of 3MB (it has: 1GB, 2MB)"
    )


@pytest.mark.parametrize(
    ("document", "needed"),
    [
        ({}, False),
        ({"pids": {"limit": 5}, "cpu": {"cpus": "0"}}, False),
        ({"memory": {"limit": 5}}, True),
        ({"cpu": {"shares": 5}}, True),
    ],
)
def test_needs_domain(document: dict[str, Any], needed: bool) -> None:
    assert needs_domain(plan(document)) is needed


def test_no_resources() -> None:
    assert plan_resources(Resources(), ()) == ()


def test_a_list_of_several_lines_is_refused() -> None:
    """The kernel would take the first of them alone."""
    with pytest.raises(ConfigError, match=r"(?s)linux\.resources\.cpu\.cpus: .* has several lines"):
        plan({"cpu": {"cpus": "0-1\n3"}})
    assert files({"cpu": {"mems": "0\n"}}) == [("cpuset.mems", "0\n")]
