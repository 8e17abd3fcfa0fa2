"""What a container's unit is, as data: its name and slice, and its limits and devices as properties."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.cgroup.devices import container_rules, emulate
from gpurun.cgroup.resources import CgroupWrite, plan_resources
from gpurun.cgroup.scope import (
    Property,
    annotation_properties,
    as_systemd_rounds,
    cpu_quota,
    device_properties,
    expand_slice,
    limit_properties,
    scope_names,
    unit_properties,
)
from gpurun.errors import ConfigError
from gpurun.formats import dbus
from gpurun.oci.resources import DeviceRule, read_resources
from tests.engine.plan.planning import base, plan, refusal, set_path

MAX = (1 << 64) - 1
ALL = ("cpu", "cpuset", "io", "memory", "pids", "hugetlb")


def values(properties: tuple[Property, ...]) -> dict[str, Any]:
    return {one.name: one.value for one in properties}


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("system.slice:docker:abc", ("system.slice", "docker-abc.scope")),
        ("kubepods-burstable.slice:cri-containerd:abc", ("kubepods-burstable.slice", "cri-containerd-abc.scope")),
        (":libpod:x", ("system.slice", "libpod-x.scope")),
        ("a.slice::x", ("a.slice", "-x.scope")),
        ("-.slice:p:x", ("-.slice", "p-x.scope")),
        ("a.slice:p:a-b.slice", ("a.slice", "a-b.slice")),
        ("-.slice::pod.slice", ("-.slice", "pod.slice")),
        ("", ("system.slice", "gpurun-id1.scope")),
    ],
)
def test_names(path: str, names: tuple[str, str]) -> None:
    assert scope_names(path, "id1") == names


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/a/b", 'expected cgroupsPath to be of format "slice:prefix:name" for systemd cgroups, got "/a/b" instead'),
        ("a.slice:b", "slice:prefix:name"),
        ("a.slice:b:c:d", "slice:prefix:name"),
        ("system:p:n", "invalid slice name: system"),
        ("a/b.slice:p:n", "invalid slice name"),
        ("a--b.slice:p:n", "invalid slice name"),
        (".slice:p:n", "invalid slice name"),
        ("a.slice:p:pod.slice", 'the slice "pod.slice" cannot be in "a.slice": by its name it is in "-.slice"'),
        ("a.slice:p:b-c.slice", 'by its name it is in "b.slice"'),
        ("-.slice::-.slice", "cannot be in"),
        ("a.slice::a-.slice", "invalid slice name"),
        ("a.slice:p:", "cannot be the name"),
        ("a.slice:p:x/../y", "cannot be the name"),
        ("a.slice:p:" + "x" * 255, "cannot be the name"),
        ("a.slice:p:b+c", "cannot be the name"),
    ],
)
def test_names_refused(path: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        scope_names(path, "id1")
    assert raised.value.where == "linux.cgroupsPath" and words in str(raised.value)


def test_dashes_nest() -> None:
    assert expand_slice("a-b-c.slice") == "/a.slice/a-b.slice/a-b-c.slice"
    assert expand_slice("system.slice") == "/system.slice"
    assert expand_slice("-.slice") == ""


def test_limits() -> None:
    resources = read_resources(
        {
            "memory": {"limit": 1 << 20, "swap": 3 << 20, "reservation": -1},
            "cpu": {"shares": 1024, "quota": 150500, "period": 100000, "cpus": "0-2,9", "mems": "0"},
            "pids": {"limit": -1},
            "blockIO": {"weight": 10},
            "unified": {"memory.high": "4096", "pids.max": "7", "misc.max": "x 1"},
        }
    )
    found = limit_properties(plan_resources(resources, (*ALL, "misc")))
    assert values(found) == {
        "MemoryMax": 1 << 20,
        "MemorySwapMax": 2 << 20,
        "MemoryLow": MAX,
        "CPUWeight": 100,
        "CPUQuotaPerSecUSec": 1_510_000,  # whole percents, rounded up
        "CPUQuotaPeriodUSec": 100_000,
        "AllowedCPUs": b"\x07\x02",
        "AllowedMemoryNodes": b"\x01",
        "TasksMax": 7,
        "IOWeight": 1,
        "MemoryHigh": 4096,
    }
    for one in found:  # systemd refuses a value of another type
        assert dbus.marshal(one.signature, (one.value,))
    assert {one.where for one in found if one.name == "TasksMax"} == {"linux.resources.unified.pids.max"}


@pytest.mark.parametrize(
    ("file", "value", "found"),
    [
        ("memory.high", "64M", {"MemoryHigh": 64 << 20}),
        ("memory.max", "1g", {"MemoryMax": 1 << 30}),
        ("memory.max", "nonsense", {}),
        ("memory.max", "1kk", {}),
        ("memory.max", "", {}),
        ("io.weight", "default 7", {"IOWeight": 7}),
        ("io.weight", "nonsense", {}),
        ("cpu.max", "nonsense", {}),
        ("cpu.max", "1000 0", {}),
        ("cpu.max", "max", {"CPUQuotaPerSecUSec": MAX, "CPUQuotaPeriodUSec": 100_000}),
    ],
)
def test_what_unified_may_hold(file: str, value: str, found: dict[str, int]) -> None:
    """The kernel says whether a value is one; systemd is told what can be told."""
    assert values(limit_properties((CgroupWrite(file, value, "w"),))) == found


def test_a_slice_of_ones_own() -> None:
    config = set_path(base(), "linux.cgroupsPath", "a.slice:p:a-b.slice")
    made = plan(set_path(config, "linux.resources.pids", {"limit": 3}), cgroup_manager="systemd")
    scope = made.cgroup.scope
    assert made.cgroup.path == "/sys/fs/cgroup/a.slice/a-b.slice"
    assert scope is not None and scope.unit == "a-b.slice" and values(scope.limits)["TasksMax"] == 3
    properties = values(scope.properties)
    assert properties["Wants"] == ("a.slice",) and "Slice" not in properties and "Delegate" not in properties


def test_an_idle_cgroup() -> None:
    found = limit_properties((CgroupWrite("cpu.idle", "1", "w"),))
    assert [(one.name, one.value, one.since) for one in found] == [("CPUWeight", 0, 252)]
    assert limit_properties((CgroupWrite("cpu.idle", "0", "w"),)) == ()


def test_quota_is_never_stricter() -> None:
    assert cpu_quota(1, 1_000_000) == 10_000
    assert cpu_quota(50_000, 100_000) == 500_000
    assert cpu_quota(33_333, 100_000) == 340_000


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        ("150500 100000", "151000 100000"),
        ("50000 100000", "50000 100000"),
        ("1 1000000", "10000 1000000"),
        ("33333", "34000 100000"),
        ("max 20000", "max 20000"),
        ("nonsense", "nonsense"),
    ],
)
def test_the_file_says_what_systemd_will_keep(value: str, rounded: str) -> None:
    write = CgroupWrite("cpu.max", value, "w")
    assert [one.value for one in as_systemd_rounds((write,))] == [rounded]
    other = CgroupWrite("pids.max", "50500", "w")
    assert as_systemd_rounds((other,)) == (other,)


@pytest.mark.parametrize("value", ["20E", "9" * 5000, str(1 << 64)])
def test_a_number_that_systemd_cannot_hold(value: str) -> None:
    """The kernel says whether it is one."""
    assert limit_properties((CgroupWrite("memory.max", value, "w"),)) == ()


@pytest.mark.parametrize("file", ["cpuset.cpus", "cpuset.mems"])
def test_a_list_that_the_kernel_and_systemd_would_read_differently(file: str) -> None:
    with pytest.raises(ConfigError, match="not a list of numbers"):
        limit_properties((CgroupWrite(file, "0-1\n3", "w"),))


@pytest.mark.parametrize("text", ["uint64 18446744073709551615", "@d inf", "@d nan"])
def test_more_seconds_than_systemd_can_count(text: str) -> None:
    with pytest.raises(ConfigError, match="more seconds than systemd can count"):
        annotation_properties({"org.systemd.property.TimeoutStopSec": text})


GPU = (DeviceRule(True, "c", 195, 0, "rw"), DeviceRule(True, "c", 195, 255, "rw"), DeviceRule(True, "c", 507, 0, "rw"))


def test_devices() -> None:
    rules = container_rules((DeviceRule(False, "a", None, None, "rwm"), *GPU))
    properties = device_properties(emulate(rules))
    assert [(p.name, p.value) for p in properties[:2]] == [("DevicePolicy", "strict"), ("DeviceAllow", ())]
    allowed = dict(properties[2].value)
    assert allowed["/dev/char/195:0"] == allowed["/dev/char/195:255"] == allowed["/dev/char/507:0"] == "rw"
    assert allowed["char-136"] == "rwm" and allowed["char-*"] == allowed["block-*"] == "m"
    assert allowed["/dev/char/1:3"] == "rwm" and "/dev/char/195:1" not in allowed


@pytest.mark.parametrize(
    "rules",
    [
        (DeviceRule(True, "a", None, None, "rwm"),),
        (DeviceRule(True, "a", None, None, "rwm"), DeviceRule(False, "c", 195, 0, "rwm")),
        (DeviceRule(True, "c", None, 7, "rw"),),
    ],
)
def test_what_systemd_cannot_say_it_is_not_told(rules: tuple[DeviceRule, ...]) -> None:
    properties = device_properties(emulate(rules))
    assert [(p.name, p.value) for p in properties] == [("DevicePolicy", "auto"), ("DeviceAllow", ())]


def test_annotations() -> None:
    found = annotation_properties(
        {
            "org.systemd.property.TimeoutStopSec": "uint64 5",
            "org.systemd.property.RuntimeMaxSec": "1.5",
            "org.systemd.property.CollectMode": "'inactive-or-failed'",
            "org.systemd.property.StopUSec": "uint64 5",
            "org.systemd.properties": "nonsense",
        }
    )
    assert [(p.name, p.signature, p.value) for p in found] == [
        ("TimeoutStopUSec", "t", 5_000_000),
        ("RuntimeMaxUSec", "t", 1_500_000),
        ("CollectMode", "s", "inactive-or-failed"),
        ("StopUSec", "t", 5),
    ]


@pytest.mark.parametrize(
    ("name", "text"), [("A", "1"), ("Ab1", "1"), ("Foo", "what"), ("TimeoutStopSec", "'x'"), ("TimeoutStopSec", "-1")]
)
def test_annotations_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"annotations.org.systemd.property.{name}"):
        annotation_properties({f"org.systemd.property.{name}": text})


def test_an_annotation_replaces_what_we_would_say() -> None:
    writes = (CgroupWrite("memory.oom.group", "1", "w"),)
    found = values(unit_properties("c1", "a.slice", {"org.systemd.property.Description": "'mine'"}, writes))
    assert found["Description"] == "mine" and found["Slice"] == "a.slice" and found["OOMPolicy"] == "kill"
    assert found["Delegate"] is True and found["DefaultDependencies"] is False


def test_the_plan() -> None:
    config = set_path(base(), "linux.cgroupsPath", "a-b.slice:docker:c1")
    made = plan(set_path(config, "linux.resources.pids", {"limit": 3}), cgroup_manager="systemd")
    assert made.cgroup.path == "/sys/fs/cgroup/a.slice/a-b.slice/docker-c1.scope"
    assert made.cgroup.scope is not None and values(made.cgroup.scope.limits)["TasksMax"] == 3
    assert made.init.cgroup_path == made.cgroup.path
    assert "slice:prefix:name" in refusal(set_path(base(), "linux.cgroupsPath", "/x"), cgroup_manager="systemd")
    assert plan(base()).cgroup.scope is None
