"""update's part that touches nothing: sizes, merging, what is written, what is saved, how a file is put back."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.cgroup.resources import plan_resources
from gpurun.engine.caller.update import merge, parse_bytes, read_update, restoring_lines, to_document, to_write
from gpurun.errors import ConfigError, GpurunError
from gpurun.oci.resources import BlockIO, Cpu, Memory, Resources, ThrottleDevice, WeightDevice
from gpurun.record import Record

ALL = ("cpu", "cpuset", "io", "memory", "pids", "hugetlb")


def read(document: dict[str, Any]) -> Resources:
    return read_update(document, "")


def written(old: dict[str, Any], new: dict[str, Any]) -> dict[str, str]:
    """What update writes for *new* to a container made with *old*."""
    given = read(new)
    return {w.file: w.value for w in plan_resources(to_write(given, merge(read(old), given)), ALL)}


def saved(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {**old, **to_document(merge(read(old), read(new)), old)}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("4096", 4096),
        ("-1", -1),
        ("10b", 10),
        ("1k", 1 << 10),
        ("512m", 512 << 20),
        ("512M", 512 << 20),
        ("1g", 1 << 30),
        ("2GiB", 2 << 30),
        ("2gb", 2 << 30),
        ("1.5g", 3 << 29),
        ("0.25 m", 1 << 18),
        ("1t", 1 << 40),
        ("1p", 1 << 50),
    ],
)
def test_sizes(text: str, number: int) -> None:
    assert parse_bytes(text, "memory") == number


@pytest.mark.parametrize(
    "text", ["", "lots", "-2", "1x", "1.m", ".5m", "1_0", "٣", "1 2", "m", "1kk", "0x10", "1e3", "+1", "9" * 5000]
)
def test_bad_sizes(text: str) -> None:
    with pytest.raises(GpurunError, match="invalid value for memory"):
        parse_bytes(text, "memory")


@pytest.mark.parametrize(
    ("old", "new", "files"),
    [
        ({}, {}, {}),
        ({"memory": {"limit": 100}, "cpu": {"shares": 2048}, "pids": {"limit": 5}}, {}, {}),
        ({"memory": {"limit": 100}}, {"memory": {"limit": 200}}, {"memory.max": "200"}),
        (
            {"memory": {"limit": 100, "swap": 150}},
            {"memory": {"limit": 120}},
            {"memory.swap.max": "30", "memory.max": "120"},
        ),
        (
            {"memory": {"limit": 100, "swap": 150}},
            {"memory": {"limit": -1}},
            {"memory.swap.max": "max", "memory.max": "max"},
        ),
        ({"memory": {"limit": 100}}, {"memory": {"swap": 300}}, {"memory.swap.max": "200", "memory.max": "100"}),
        ({"memory": {"limit": 100}}, {"memory": {"reservation": 50}}, {"memory.low": "50"}),
        ({"cpu": {"quota": 5, "period": 10}}, {"cpu": {"quota": 6}}, {"cpu.max": "6 10"}),
        ({"cpu": {"quota": 5, "period": 10}}, {"cpu": {"period": 20}}, {"cpu.max": "5 20"}),
        ({"cpu": {"quota": 5, "period": 10}}, {"cpu": {"quota": -1}}, {"cpu.max": "max 10"}),
        ({"cpu": {"quota": 5, "period": 10}}, {"cpu": {"shares": 1024}}, {"cpu.weight": "100"}),
        ({}, {"cpu": {"period": 50000}}, {"cpu.max": "max 50000"}),
        ({"cpu": {"quota": 9, "burst": 3}}, {"cpu": {"quota": 8}}, {"cpu.max.burst": "3", "cpu.max": "8 100000"}),
        ({"cpu": {"shares": 2048}}, {"cpu": {"idle": 1}}, {"cpu.idle": "1"}),
        ({"cpu": {"idle": 1}}, {"cpu": {"idle": 0}}, {"cpu.idle": "0"}),
        ({"cpu": {"cpus": "0-3", "mems": "0"}}, {"cpu": {"cpus": "1"}}, {"cpuset.cpus": "1"}),
        ({"pids": {"limit": 10}}, {"pids": {"limit": -1}}, {"pids.max": "max"}),
        ({"pids": {"limit": 10}}, {"pids": {"limit": 0}}, {"pids.max": "1"}),
        ({"unified": {"memory.max": "1"}}, {"memory": {"limit": 5}}, {"memory.max": "5"}),
        ({}, {"unified": {"memory.high": "9"}}, {"memory.high": "9"}),
        ({}, {"devices": [{"allow": True, "access": "rwm"}]}, {}),
        ({}, {"hugepageLimits": [{"pageSize": "2MB", "limit": 0}]}, {}),
        (
            {"blockIO": {"throttleReadBpsDevice": [{"major": 8, "minor": 0, "rate": 5}]}},
            {"blockIO": {"throttleReadBpsDevice": [{"major": 8, "minor": 16, "rate": 6}]}},
            {"io.max": "8:16 rbps=6"},
        ),
    ],
)
def test_what_is_written(old: dict[str, Any], new: dict[str, Any], files: dict[str, str]) -> None:
    assert written(old, new) == files


def test_swap_below_the_new_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory\\+swap limit should be >= memory limit"):
        written({"memory": {"limit": 100, "swap": 150}}, {"memory": {"limit": 200}})


def test_saved_limits_are_merged() -> None:
    old = {
        "devices": [{"allow": False, "access": "rwm"}],
        "memory": {"limit": 100, "swap": 150, "disableOOMKiller": True},
        "cpu": {"quota": 5, "period": 10, "cpus": "0-3", "realtimePeriod": 7},
        "hugepageLimits": [{"pageSize": "2MB", "limit": 0}],
        "network": {"classID": 1},
    }
    new = {"memory": {"limit": 120}, "cpu": {"quota": 6, "idle": 0}, "pids": {"limit": 0}, "unified": {"memory.high": "9"}}
    assert saved(old, new) == {
        **old,
        "memory": {"limit": 120, "swap": 150, "disableOOMKiller": True},
        "cpu": {"quota": 6, "period": 10, "cpus": "0-3", "realtimePeriod": 7, "idle": 0},
        "pids": {"limit": 0},
        "unified": {"memory.high": "9"},
    }


def test_devices_of_block_io_are_merged_by_number() -> None:
    def limits(*rates: tuple[int, int, int]) -> list[dict[str, int]]:
        return [{"major": major, "minor": minor, "rate": rate} for major, minor, rate in rates]

    old = {"blockIO": {"weight": 100, "throttleReadBpsDevice": limits((8, 0, 5), (8, 16, 6)), "leafWeight": 10}}
    new = {
        "blockIO": {"throttleReadBpsDevice": limits((8, 16, 7), (8, 32, 8)), "throttleWriteIOPSDevice": limits((8, 0, 1))}
    }
    assert saved(old, new)["blockIO"] == {
        "weight": 100,
        "leafWeight": 10,
        "throttleReadBpsDevice": limits((8, 0, 5), (8, 16, 7), (8, 32, 8)),
        "throttleWriteIOPSDevice": limits((8, 0, 1)),
    }


def test_saved_again_is_the_same() -> None:
    old = {"memory": {"limit": 100}, "cpu": {"shares": 5, "burst": 0, "idle": 0}, "pids": {"limit": -1}}
    assert saved(old, {}) == old
    assert saved(saved(old, {}), {}) == old


@pytest.mark.parametrize(
    ("file", "before", "now", "lines"),
    [
        ("memory.max", "max\n", "5\n", ("max",)),
        ("cpuset.cpus", "\n", "0-3\n", ("\n",)),
        ("io.max", "", "8:0 rbps=5 wbps=max riops=max wiops=max\n", ("8:0 rbps=max wbps=max riops=max wiops=max",)),
        ("io.max", "8:0 rbps=5 wbps=max\n", "8:0 rbps=6 wbps=max\n", ("8:0 rbps=5 wbps=max",)),
        ("io.weight", "default 100\n", "default 200\n8:0 300\n", ("default 100", "8:0 default")),
    ],
)
def test_putting_back(file: str, before: str, now: str, lines: tuple[str, ...]) -> None:
    assert restoring_lines(file, before, now) == lines


#: Fields that update does not change, so that what is saved of them stays as it was.
NOT_BY_UPDATE = {"devices", "hugepage_limits", "rdma"}
#: A field that is no limit, but says how the update itself is made.
NOT_A_LIMIT = {"check_before_update"}
VALUES: dict[str, Any] = {"idle": 1, "pids_limit": 9, "unified": {"memory.high": "1"}, "cpus": "0-1", "mems": "0"}


def a_record(kind: type[Record]) -> Record:
    """One in which every field says something."""
    values: dict[str, Any] = {}
    for number, field in enumerate(kind._fields, 20):
        if field == "weight_devices":
            values[field] = (WeightDevice(8, 0, number),)
        elif field.endswith(("_bps", "_iops")):
            values[field] = (ThrottleDevice(8, 0, number),)
        elif field not in NOT_A_LIMIT:
            values[field] = VALUES.get(field, number)
    return kind(**values)


def test_every_field_that_update_changes_is_saved() -> None:
    """A field that is added to the records and not to what is saved would be lost at the next update."""
    records = {"memory": a_record(Memory), "cpu": a_record(Cpu), "block_io": a_record(BlockIO)}
    given: dict[str, Any] = {
        field: records.get(field) or VALUES[field] for field in Resources._fields if field not in NOT_BY_UPDATE
    }
    every = Resources(**given)
    assert read(to_document(every, {})) == every
