"""explain: what is planned is told, in words."""

from __future__ import annotations

import json

import pytest

from gpurun.cdi.edits import ContainerEdits, DeviceNode
from gpurun.cgroup.placement import POLICIES, Site
from gpurun.engine.plan.container import PlanOptions, make_plan
from gpurun.library.explanation import explain_plan
from gpurun.oci.annotations import GPURUN
from gpurun.oci.config import read_config
from gpurun.record import replace
from tests.engine.plan.planning import HOST, base, plan

#: Each placement policy, a value, and what it comes to in the container below.
EXPECTED = {
    "memory.high": ("0.5", [f"memory.high = {1 << 29}"]),
    "memory.swap": ("off", ["memory.swap.max = 0"]),
    "memory.oom.group": ("true", ["memory.oom.group = 1"]),
    "gpu.local": ("true", ["cpuset.cpus = 0-3,4-7", "cpuset.mems = 0,1"]),
    "cpu.exclusive": ("isolated", ["cpuset.cpus.exclusive = 2", "cpuset.cpus.partition = isolated"]),
    "io.weight": ("300", ["io.weight = default 300"]),
}


def test_what_few_containers_ask_for_is_told() -> None:
    config = base()
    maps = [{"containerID": 0, "hostID": 100000, "size": 10}]
    config["mounts"].append(
        {
            "destination": "/data",
            "source": "/srv",
            "options": ["rbind", "ridmap"],
            "uidMappings": maps,
            "gidMappings": [{**maps[0], "hostID": 5}],
        }
    )
    config["mounts"].append({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup"})
    config["process"].update(user={"uid": 1000, "gid": 0}, apparmorProfile="docker-default", selinuxLabel="u:r:t:s0")
    config["process"]["scheduler"] = {"policy": "SCHED_BATCH", "nice": 5}
    config["linux"].update(netDevices={"eth7": {"name": "inner"}}, intelRdt={"l3CacheSchema": "L3:0=f"})
    text = "".join(
        [f"{line}\n" for line in explain_plan(plan(config, replace(HOST, apparmor=True, selinux=True, resctrl=True)))]
    )
    for line in (
        "  /data  bind /srv  rbind   (ids mapped, in all below too: uid 0 100000 10; gid 0 5 10)",
        "  network device eth7, there called inner",
        "  its cgroup, owned by the host's user 1000",
        "  resctrl group /sys/fs/resctrl/c1: L3:0=f",
        "  AppArmor profile docker-default",
        "  SELinux label u:r:t:s0",
        "  scheduler: (3, 0, 5, 0, 0, 0, 0)",
    ):
        assert f"{line}\n" in text, text


def test_a_usual_container_says_nothing_of_it() -> None:
    text = "".join([f"{line}\n" for line in explain_plan(plan(base()))])
    for word in ("lent", "mapped", "SELinux", "AppArmor", "scheduler"):
        assert word not in text


def placed(policy: str, by_site: bool) -> str:
    """The explanation of a container with that policy, a memory limit and GPUs on two NUMA nodes."""
    config, host = base(), replace(HOST, numa=((0, "0-3"), (1, "4-7")))
    config["linux"]["resources"] = {"memory": {"limit": 1 << 30}}
    config["linux"]["cgroupsPath"] = "/c1"
    value = EXPECTED[policy][0]
    if policy == "cpu.exclusive":
        config["linux"]["resources"]["cpu"] = {"cpus": "2"}
    if by_site:
        host = replace(host, site=Site("/etc/gpurun/config.toml", ((policy, value),)))
    else:
        config["annotations"] = {GPURUN + policy: value}
    read = read_config(json.dumps(config).encode())
    return "".join(
        [f"{line}\n" for line in explain_plan(make_plan(read, "c1", "/bundle", host, ContainerEdits(numa_nodes=(1, 0))))]
    )


@pytest.mark.parametrize("by_site", [False, True])
@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_is_told(policy: str, by_site: bool) -> None:
    """What it comes to, and who has asked for it."""
    text = placed(policy, by_site)
    where = f"/etc/gpurun/config.toml: placement.{policy}" if by_site else f"annotations.{GPURUN}{policy}"
    for line in EXPECTED[policy][1]:
        assert f"  {line}   ({where})\n" in text, text
    assert ("different NUMA nodes (0, 1): all of these are used" in text) == (policy == "gpu.local")


def test_device_rules_name_the_device() -> None:
    """By the node that the plan makes, and its reason; else by what the number always is."""
    config = base()
    config["linux"]["resources"] = {"devices": [{"allow": False, "access": "rwm"}]}
    for number, access in (((195, 7), "r"), ((195, 255), "rw"), ((136, None), "rw"), ((9, 9), "rw")):
        numbers = {"major": number[0]} | ({} if number[1] is None else {"minor": number[1]})
        config["linux"]["resources"]["devices"].append({"allow": True, "type": "c", "access": access, **numbers})
    config["linux"]["devices"] = [{"path": "/dev/mine", "type": "c", "major": 9, "minor": 9}]
    read = read_config(json.dumps(config).encode())
    edits = ContainerEdits(device_nodes=(DeviceNode("/dev/nvidia0", "", "c", 195, 0, reason="GPU 1 (asked for)"),))
    lines = explain_plan(make_plan(read, "c1", "/bundle", HOST, edits))
    for line in (
        "  deny a *:* rwm",
        "  allow c 195:7 r   (/dev/nvidia7)",
        "  allow c 195:255 rw   (/dev/nvidiactl)",
        "  allow c 136:* rw   (/dev/pts/*)",
        "  allow c 9:9 rw   (/dev/mine)",
        "  allow c 195:0 rw   (/dev/nvidia0: GPU 1 (asked for))",
        "  allow c 1:3 rwm   (/dev/null)",
        "  allow b *:* m",
    ):
        assert line in lines, lines


def test_a_container_without_a_cgroup_has_no_device_filtered() -> None:
    """``podman run --cgroups=disabled``: the devices are there, and nothing keeps the container from others."""
    config = base()
    config["linux"]["resources"] = {"devices": [{"allow": False, "access": "rwm"}], "pids": {"limit": 5}}
    options = PlanOptions(cgroup_manager="disabled")
    text = "\n".join(
        explain_plan(make_plan(read_config(json.dumps(config).encode()), "c1", "/b", HOST, ContainerEdits(), options))
    )
    assert "none of its own: no limit of linux.resources applies" in text
    assert "all devices are allowed, those of other GPUs too" in text and "pids.max" not in text


@pytest.mark.parametrize("confined", [True, False])
def test_rules_that_nobody_enforces(confined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpurun.library.explanation.is_confined", lambda: confined)
    monkeypatch.setattr("gpurun.library.explanation.has_capabilities", lambda *_: True)
    config = base()
    config["linux"]["resources"] = {"devices": [{"allow": False, "access": "rwm"}]}
    text = "\n".join(explain_plan(plan(config)))
    assert ("not enforced: the kernel accepts device programs only from the host's root" in text) is confined
