"""Placement policies: annotations, limits and GPUs in; cgroup writes and warnings out."""

from __future__ import annotations

import pytest

from gpurun.cgroup.placement import Asked, Site, Topology, high_after_update, place, read_policies
from gpurun.cgroup.resources import CgroupWrite
from gpurun.cgroup.tree import Tree, numa_nodes
from gpurun.errors import ConfigError
from tests.engine.plan.planning import base, plan, refusal, set_path

TREE = Tree("/sys/fs/cgroup", ("cpuset", "cpu", "io", "memory"), ())
TWO = Topology(((0, "0-3"), (1, "4-7")))
LIMIT = CgroupWrite("memory.max", str(1 << 30), "linux.resources.memory.limit")
CPUS = CgroupWrite("cpuset.cpus", "2", "linux.resources.cpu.cpus")


def placed(
    *given: CgroupWrite,
    nodes: tuple[int, ...] = (),
    topology: Topology = TWO,
    tree: Tree = TREE,
    **asked: str,
) -> tuple[dict[str, str], tuple[str, ...]]:
    annotations = {f"dev.gpurun.{name.replace('_', '.')}": value for name, value in asked.items()}
    made = place(read_policies(annotations, Site()), Asked(given, nodes, topology), tree)
    assert all(write.where in {f"annotations.{name}" for name in annotations} for write in made.writes)
    assert made.notes == ()
    return {write.file: write.value for write in made.writes}, made.warnings


def refused(*given: CgroupWrite, **how: object) -> str:
    with pytest.raises(ConfigError) as raised:
        placed(*given, **how)  # type: ignore[arg-type]
    assert raised.value.where.startswith("annotations.dev.gpurun.")
    return str(raised.value)


def test_off_unless_asked_for() -> None:
    assert placed(LIMIT) == ({}, ())
    assert placed(LIMIT, memory_high="false", gpu_local="false", cpu_exclusive="false") == ({}, ())


def test_memory() -> None:
    assert placed(LIMIT, memory_high="true")[0] == {"memory.high": str(int((1 << 30) * 0.87) & ~4095)}
    assert placed(LIMIT, memory_high="0.5")[0] == {"memory.high": str(1 << 29)}
    assert placed(memory_swap="off", memory_oom_group="true")[0] == {"memory.swap.max": "0", "memory.oom.group": "1"}


@pytest.mark.parametrize("value", ["1", "1.5", "0", "0.", "0.0", "-0.5", "87", "yes", "0.5x"])
def test_memory_high_refused(value: str) -> None:
    assert "share between 0 and 1" in refused(LIMIT, memory_high=value)


def test_memory_high_of_no_limit() -> None:
    assert "set linux.resources.memory.limit" in refused(memory_high="true")


def test_what_the_config_sets_stays() -> None:
    high = CgroupWrite("memory.high", "4096", "linux.resources.unified.memory.high")
    assert placed(LIMIT, high, memory_high="true") == (
        {},
        ("dev.gpurun.memory.high: the config sets memory.high itself, which stays",),
    )


def test_near_the_gpus() -> None:
    assert placed(nodes=(1,), gpu_local="true") == ({"cpuset.cpus": "4-7", "cpuset.mems": "1"}, ())
    assert placed(nodes=(1, 1), gpu_local="cpus") == ({"cpuset.cpus": "4-7"}, ())
    assert placed(nodes=(0,), gpu_local="memory") == ({"cpuset.mems": "0"}, ())


def test_gpus_on_different_nodes() -> None:
    writes, (warning,) = placed(nodes=(1, 0), gpu_local="true")
    assert writes == {"cpuset.cpus": "0-3,4-7", "cpuset.mems": "0,1"}
    assert "on different NUMA nodes (0, 1)" in warning


def test_a_node_without_cpus() -> None:
    far = Topology(((0, "0-3"), (1, "")))
    assert placed(nodes=(1,), gpu_local="true", topology=far)[0] == {"cpuset.mems": "1"}


@pytest.mark.parametrize(("nodes", "words"), [((-1,), "does not say"), ((0, -1), "does not say"), ((5,), "does not have")])
def test_what_the_host_does_not_say_limits_nothing(nodes: tuple[int, ...], words: str) -> None:
    writes, (warning,) = placed(nodes=nodes, gpu_local="true")
    assert writes == {} and words in warning


def test_near_no_gpu() -> None:
    assert "no GPUs" in refused(gpu_local="true")
    assert "one of true, cpus" in refused(nodes=(0,), gpu_local="yes")


def test_exclusive_cpus() -> None:
    assert placed(CPUS, cpu_exclusive="true")[0] == {"cpuset.cpus.exclusive": "2", "cpuset.cpus.partition": "root"}
    writes = placed(nodes=(1,), gpu_local="true", cpu_exclusive="isolated")[0]
    assert (
        writes["cpuset.cpus.exclusive"] == "4-7" == writes["cpuset.cpus"] and writes["cpuset.cpus.partition"] == "isolated"
    )
    assert list(writes)[-2:] == ["cpuset.cpus.exclusive", "cpuset.cpus.partition"], "after the CPUs themselves"


def test_exclusive_cpus_refused() -> None:
    assert "does not say which CPUs" in refused(cpu_exclusive="true")
    assert "one of true" in refused(CPUS, cpu_exclusive="member")


def test_io() -> None:
    assert placed(io_weight="500")[0] == {"io.weight": "default 500"}
    for value in ("0", "10001", "high", "", "99999999"):
        assert "from 1 to 10000" in refused(io_weight=value)


def test_a_controller_that_is_missing() -> None:
    hybrid = Tree("/sys/fs/cgroup/unified", ("hugetlb",), ("io", "memory"))
    assert "bound to cgroup v1" in refused(io_weight="5", tree=hybrid)


def test_a_policy_that_does_not_exist() -> None:
    assert "is an unknown policy, it must be one of dev.gpurun.memory.high" in refused(gpu_lokal="true")


SITE = "/etc/gpurun/config.toml"


def by_site(policies: dict[str, str], *given: CgroupWrite, **annotations: str) -> tuple[dict[str, str], str]:
    """The writes and all that is noted, when the site asks for *policies*."""
    asked = {f"dev.gpurun.{name.replace('_', '.')}": value for name, value in annotations.items()}
    made = place(read_policies(asked, Site(SITE, tuple(policies.items()))), Asked(given, (), TWO), TREE)
    assert made.warnings == (), "the log is not for what nobody who runs a container has asked for"
    return {write.file: write.value for write in made.writes}, " ".join(made.notes)


def test_the_site_asks() -> None:
    site = {"memory.high": "0.5", "io.weight": "200"}
    assert by_site(site, LIMIT) == ({"memory.high": str(1 << 29), "io.weight": "default 200"}, "")
    assert by_site(site, LIMIT, memory_high="false") == ({"io.weight": "default 200"}, "")
    assert by_site(site, LIMIT, memory_high="0.25")[0]["memory.high"] == str(1 << 28)
    (write,) = place(read_policies({}, Site(SITE, (("memory.high", "0.5"),))), Asked((LIMIT,), (), TWO), TREE).writes
    assert write.where == f"{SITE}: placement.memory.high"


def test_what_the_site_wants_and_a_container_cannot_have_is_noted() -> None:
    writes, notes = by_site({"memory.high": "true", "gpu.local": "true", "cpu.exclusive": "true", "memory.swap": "off"})
    assert writes == {"memory.swap.max": "0"}
    for words in (
        "memory.high is left out: is a fraction",
        "gpu.local is left out: the container has no GPUs",
        "does not say which CPUs",
    ):
        assert words in notes
    high = CgroupWrite("memory.high", "4096", "linux.resources.unified.memory.high")
    assert "the config sets memory.high itself" in by_site({"memory.high": "true"}, LIMIT, high)[1]


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ({"memory.hihg": "true"}, "placement.memory.hihg: is an unknown policy, it must be one of memory.high, "),
        ({"memory.high": "2"}, "placement.memory.high: .*share between 0 and 1"),
        ({"gpu.local": "maybe"}, "placement.gpu.local: .*must be one of"),
        ({"cpu.exclusive": "member"}, "placement.cpu.exclusive: .*must be one of"),
    ],
)
def test_a_mistake_of_the_site_is_refused(policies: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=SITE + ": " + words):
        by_site(policies, LIMIT)


def test_a_new_limit_takes_the_share_along() -> None:
    policies = read_policies({"dev.gpurun.memory.high": "0.5"}, Site())
    high = high_after_update(policies, CgroupWrite("memory.max", str(1 << 20), "w"), {})
    assert high is not None and (high.file, high.value) == ("memory.high", str(1 << 19))
    high = high_after_update(policies, CgroupWrite("memory.max", "max", "w"), {})
    assert high is not None and high.value == "max"
    assert high_after_update(policies, LIMIT, {"memory.high": "4096"}) is None, "the config's own stays"
    assert high_after_update(read_policies({"dev.gpurun.memory.swap": "off"}, Site()), LIMIT, {}) is None


def test_in_the_plan() -> None:
    config = set_path(base(), "linux.resources.memory", {"limit": 1 << 30})
    config["annotations"] = {"dev.gpurun.memory.high": "0.5", "dev.gpurun.memory.oom.group": "true"}
    made = plan(set_path(config, "linux.cgroupsPath", "a.slice:p:c1"), cgroup_manager="systemd")
    assert [(w.file, w.value) for w in made.cgroup.writes[-2:]] == [("memory.high", str(1 << 29)), ("memory.oom.group", "1")]
    assert made.cgroup.scope is not None
    assert {p.name: p.value for p in made.cgroup.scope.limits}["MemoryHigh"] == 1 << 29
    assert {p.name: p.value for p in made.cgroup.scope.properties}["OOMPolicy"] == "kill"
    config["annotations"] = {"dev.gpurun.gpu.local": "true"}
    assert "no GPUs" in refusal(set_path(config, "linux.cgroupsPath", "/c1"))


def test_nodes_of_this_host() -> None:
    found = numa_nodes()
    assert found == () or (found[0][0] == 0 and found[0][1][0].isdigit())
