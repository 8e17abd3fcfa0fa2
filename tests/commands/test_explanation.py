"""explain: what is planned is told, in words."""

from __future__ import annotations

from gpurun.commands.explanation import explain_plan
from gpurun.record import replace
from tests.engine.planning import HOST, base, plan


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
    text = explain_plan(plan(config, replace(HOST, apparmor=True, selinux=True, resctrl=True)))
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
    text = explain_plan(plan(base()))
    for word in ("lent", "mapped", "SELinux", "AppArmor", "scheduler"):
        assert word not in text
