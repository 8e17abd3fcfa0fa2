"""The plan as data: contradictions and refusals with their JSON paths (no root, nothing touched), and the golden plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpurun.formats.jsontext import dumps
from gpurun.oci.default_spec import default_spec
from gpurun.record import from_wire, replace, to_plain, to_wire
from tests.engine.plan.planning import HOST, base, plan, refusal, set_path
from tests.golden import same_as_golden

GOLDEN = Path(__file__).with_name("golden_spec_plan.json")
MAPS = [{"containerID": 0, "hostID": 100000, "size": 65536}]


def without_namespace(kind: str) -> dict[str, Any]:
    config = base()
    config["linux"]["namespaces"] = [n for n in config["linux"]["namespaces"] if n["type"] != kind]
    return config


def with_namespace(kind: str, path: str = "", **linux: Any) -> dict[str, Any]:
    config = without_namespace(kind)
    config["linux"]["namespaces"].append({"type": kind, **({"path": path} if path else {})})
    config["linux"].update(linux)
    return config


def with_mount(**mount: Any) -> dict[str, Any]:
    config = base()
    config["mounts"] = [{"destination": "/data", "source": "/srv", "options": ["bind"], **mount}]
    return config


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("root", ..., "root: root must be specified"),
        ("root.path", "", "root.path: must not be empty"),
        ("process", ..., "process: process property must not be empty"),
        ("process.cwd", ..., "process.cwd: Cwd property must not be empty"),
        ("process.cwd", "tmp", "process.cwd: Cwd must be an absolute path"),
        ("process.args", [], "process.args: args must not be empty"),
        ("process.env", ["A=1", "B"], "process.env[1]: invalid environment variable: missing '=' in \"B\""),
        ("process.env", ["=1"], 'process.env[0]: invalid environment variable: name cannot be empty in "=1"'),
        ("process.env", ["A=\0"], "process.env[0]: contains a null byte"),
        ("process.oomScoreAdj", 1001, "process.oomScoreAdj: 1001 is out of range, it must be from -1000 to 1000"),
        (
            "process.rlimits",
            [{"type": "RLIMIT_X", "soft": 1, "hard": 1}],
            'process.rlimits[0].type: wrong rlimit value: "RLIMIT_X" (known are RLIMIT_AS, RLIMIT_CORE,',
        ),
        (
            "process.rlimits",
            [{"type": "RLIMIT_CPU", "soft": 1, "hard": 1}] * 2,
            "process.rlimits[1]: RLIMIT_CPU is given twice",
        ),
        (
            "process.rlimits",
            [{"type": "RLIMIT_CPU", "soft": 2, "hard": 1}],
            "process.rlimits[0]: the soft limit 2 is above the hard limit 1",
        ),
        ("linux.namespaces", [{"type": "net"}], 'linux.namespaces[0].type: namespace "net" does not exist'),
        ("linux.namespaces", [{"type": "pid"}] * 2, "linux.namespaces[1]: malformed spec file: duplicated ns pid"),
        (
            "linux.namespaces",
            [{"type": "pid", "path": "proc/1/ns/pid"}],
            'linux.namespaces[0].path: "proc/1/ns/pid" must be an absolute path',
        ),
        ("linux.rootfsPropagation", "x", 'linux.rootfsPropagation: "x" is unknown, it must be one of shared, rshared, '),
        ("linux.maskedPaths", ["/a", "b"], 'linux.maskedPaths[1]: "b" must be an absolute path'),
        ("linux.readonlyPaths", ["b"], 'linux.readonlyPaths[0]: "b" must be an absolute path'),
        (
            "linux.uidMappings",
            MAPS,
            "linux.uidMappings: user namespace mappings specified, but user namespace isn't enabled in the config",
        ),
        (
            "linux.timeOffsets",
            {"monotonic": {"secs": 1}},
            "linux.timeOffsets: time offsets need a new time namespace: add one to linux.namespaces",
        ),
        ("linux.sysctl", {"kernel.hostname": "x"}, 'linux.sysctl.kernel.hostname: sysctl "kernel.hostname" is not allowed'),
        (
            "linux.sysctl",
            {"vm.swappiness": "1"},
            'linux.sysctl.vm.swappiness: sysctl "vm.swappiness" is not in a separate kernel namespace',
        ),
        ("linux.sysctl", {"net..x": "1"}, "linux.sysctl.net..x: is not the name of a sysctl"),
        ("linux.devices", [{"path": "/dev/x", "type": "x"}], 'linux.devices[0].type: invalid device type "x"'),
        ("linux.devices", [{"path": "x", "type": "c"}], 'linux.devices[0].path: "x" must be an absolute path'),
        ("hooks", {"prestart": [{"path": "x"}]}, 'hooks.prestart[0].path: "x" must be an absolute path'),
        ("hooks", {"poststop": [{"path": "/x", "timeout": 0}]}, "hooks.poststop[0].timeout: 0 must be greater than zero"),
        (
            "linux.cgroupsPath",
            "/..",
            'linux.cgroupsPath: "/.." is the root of the tree: it must name a cgroup for this container only',
        ),
        ("linux.netDevices", {"a/b": {}}, 'linux.netDevices.a/b: invalid network device name "a/b"'),
        ("linux.netDevices", {"eth0": 1}, "linux.netDevices.eth0: must be an object, not a number"),
    ],
)
def test_refusals(path: str, value: Any, text: str) -> None:
    assert refusal(set_path(base(), path, value)).startswith(text)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (without_namespace("uts"), "hostname: unable to set hostname without a private UTS namespace"),
        (
            set_path(set_path(without_namespace("uts"), "hostname", ""), "domainname", "d"),
            "domainname: unable to set domainname without a private UTS namespace",
        ),
        (without_namespace("mount"), "linux.maskedPaths: unable to restrict sys entries without a private MNT namespace"),
        (
            set_path(without_namespace("mount"), "linux.maskedPaths", []),
            "linux.readonlyPaths: unable to restrict sys entries without a private MNT namespace",
        ),
        (
            set_path(without_namespace("network"), "linux.netDevices", {"eth0": {}}),
            "linux.netDevices: unable to move network devices without a private NET namespace",
        ),
        (
            set_path(without_namespace("network"), "linux.sysctl", {"net.ipv4.ip_forward": "1"}),
            'linux.sysctl.net.ipv4.ip_forward: sysctl "net.ipv4.ip_forward" is not in a separate kernel namespace',
        ),
        (
            with_namespace("user", uidMappings=MAPS),
            "linux.gidMappings: is missing: a user namespace needs both uidMappings and gidMappings",
        ),
        (
            with_namespace("user", uidMappings=[{**MAPS[0], "containerID": 1}], gidMappings=MAPS),
            "linux.uidMappings: must map the container's id 0",
        ),
        (
            with_namespace("user", uidMappings=MAPS, gidMappings=[{**MAPS[0], "size": 0}]),
            "linux.gidMappings[0].size: must not be 0",
        ),
        (
            with_namespace("time", "/proc/1/ns/time", timeOffsets={"boottime": {"secs": 1}}),
            "linux.timeOffsets: time offsets need a new time namespace: a joined one has its own",
        ),
        (
            with_namespace("time", timeOffsets={"realtime": {"secs": 1}}),
            "linux.timeOffsets.realtime: is not a clock of a time namespace, use monotonic or boottime",
        ),
        (with_mount(destination=""), "mounts[0].destination: is missing, a path in the container is needed"),
        (with_mount(destination="/a/.."), 'mounts[0].destination: "/a/.." is the root itself, which root.path gives'),
        (with_mount(source=""), "mounts[0].source: is missing, a bind mount needs one"),
        (with_mount(source="a\0"), "mounts[0].source: contains a null byte"),
        (
            with_mount(options=["bind", "size=1k", "x"]),
            "mounts[0].options: bind mounts cannot have any filesystem-specific options applied (size=1k, x)",
        ),
        (with_mount(options=[]), "mounts[0].type: is missing: name a file system, or add the option bind or rbind"),
        (
            with_mount(destination="/proc/x", options=[], type="tmpfs"),
            'mounts[0].destination: "/proc/x" cannot be mounted because it is inside /proc',
        ),
        (with_mount(options=[], type="tmpfs", uidMappings=MAPS), "mounts[0]: id-mapped mounts are only supported for bind"),
        (with_mount(options=["bind", "idmap"]), "mounts[0].options: idmap needs uidMappings and gidMappings"),
        *[
            (with_mount(options=["bind", f"{name}={text}"]), f"mounts[0].options: {said}")
            for name, text, said in (
                ("idmap", "uids=0-1-10", "idmap=uids=0-1-10 has no gids: an id-mapped mount needs both"),
                ("ridmap", "uids=0-1-1;uids=0-1-1;gids=0-1-1", "uids is given twice in idmap="),
                ("idmap", "uids=0-1-1;sizes=0-1-1", '"sizes=0-1-1" in idmap='),
                ("idmap", "uids=0-1;gids=0-1-1", '"0-1" in idmap=uids=0-1;gids=0-1-1 is not a range of ids'),
                ("idmap", "uids=0-1-x;gids=0-1-1", '"0-1-x" in idmap='),
                ("idmap", "uids=0-1--1;gids=0-1-1", '"0-1--1" in idmap='),
                ("idmap", "uids=@0-1-1;gids=0-1-1", "@ in idmap=uids=@0-1-1;gids=0-1-1 is for containers with a user"),
            )
        ],
        (
            with_mount(options=["bind", "idmap=uids=0-1-1#5-5-0;gids=0-1-1"]),
            "mounts[0].options (idmap=uids=0-1-1#5-5-0;gids=0-1-1)[1].size: must not be 0",
        ),
        (with_mount(options=["copy-symlink"], type="tmpfs"), "mounts[0].options: copy-symlink is for bind mounts"),
        (
            with_mount(uidMappings=MAPS),
            "mounts[0].gidMappings: is missing: an id-mapped mount needs both uidMappings and gidMappings",
        ),
        (
            with_mount(options=["bind", "remount", "ridmap"]),
            "mounts[0].options: remount cannot change the id map of a mount",
        ),
    ],
)
def test_contradictions(config: dict[str, Any], text: str) -> None:
    assert refusal(config).startswith(text)


def test_no_pivot_and_private_propagation() -> None:
    for word in ("private", "rprivate"):
        text = refusal(set_path(base(), "linux.rootfsPropagation", word), no_pivot=True)
        assert text == "linux.rootfsPropagation: rootfsPropagation of [r]private is not safe without pivot_root"
    plan(set_path(base(), "linux.rootfsPropagation", "slave"), no_pivot=True)


def test_maps_of_a_joined_user_namespace() -> None:
    host = replace(HOST, joined_maps=("0 100000 65536\n", "0 200000 10\n10 200010 65526\n"))
    joined = with_namespace("user", "/run/u", gidMappings=[{**MAPS[0], "hostID": 200000}])
    namespaces = plan(joined, host).namespaces
    assert (namespaces.uid_map, namespaces.gid_map) == ("", "")
    assert (namespaces.uids, namespaces.gids) == host.joined_maps
    text = refusal(with_namespace("user", "/run/u", uidMappings=MAPS, gidMappings=MAPS), host)
    assert text == (
        "linux.gidMappings: differs from the map of the joined user namespace (0 200000 10, 10 200010 65526): "
        "give the same or none"
    )


def test_id_maps_of_mounts() -> None:
    own = plan(with_mount(options=["rbind", "ridmap"], uidMappings=MAPS, gidMappings=MAPS)).init.mounts[0].idmap
    assert own is not None
    assert (own.recursive, own.uid_map, own.gid_map) == (True, "0 100000 65536\n", "0 100000 65536\n")
    config = with_namespace("user", uidMappings=MAPS, gidMappings=MAPS)
    config["mounts"] = with_mount(options=["bind", "idmap"])["mounts"]
    containers = plan(config).init.mounts[0].idmap
    assert containers is not None
    assert (containers.recursive, containers.uid_map) == (False, "0 100000 65536\n")


@pytest.mark.parametrize(
    ("options", "user", "cgroup_namespace", "owner"),
    [
        (["rw"], 0, True, 100000),
        ([], 7, True, 100007),
        (["ro"], 0, True, 0),
        (["rro"], 0, True, 0),
        (["rw"], 0, False, 0),
        (["rw"], 70000, True, 0),
    ],
)
def test_who_is_given_the_cgroup(options: list[str], user: int, cgroup_namespace: bool, owner: int) -> None:
    config = with_namespace("user", uidMappings=MAPS, gidMappings=MAPS)
    config["mounts"].append({"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": options})
    config["process"]["user"]["uid"] = user
    if not cgroup_namespace:
        config["linux"]["namespaces"] = [n for n in config["linux"]["namespaces"] if n["type"] != "cgroup"]
    assert plan(config).cgroup.owner == owner


def test_what_only_cgroup_v1_has_changes_nothing() -> None:
    config = base()
    limits: dict[str, Any] = {"memory": {"limit": 1 << 30}, "cpu": {"shares": 512}, "blockIO": {"weight": 500}}
    device = {"major": 8, "minor": 0, "weight": 100}
    limits["blockIO"]["weightDevice"] = [dict(device)]
    config["linux"]["resources"].update(limits)
    expected = plan(config)
    limits["memory"].update(kernel=1, kernelTCP=1, swappiness=60, disableOOMKiller=True, useHierarchy=True)
    limits["cpu"].update(realtimeRuntime=1, realtimePeriod=2)
    limits["blockIO"]["leafWeight"] = 100
    limits["blockIO"]["weightDevice"][0]["leafWeight"] = 100
    config["linux"]["resources"].update(limits, network={"classID": 1, "priorities": [{"name": "eth0", "priority": 5}]})
    assert plan(config) == expected


def test_null_is_absent_and_unknown_members_are_ignored() -> None:
    config = base()
    expected = plan(config)
    config["process"]["scheduler"] = config["linux"]["intelRdt"] = config["hooks"] = config["linux"]["seccomp"] = None
    config["process"]["anything"] = config["linux"]["resources"]["anything"] = {"a": [1]}
    assert plan(config) == expected


def test_plans_can_be_sent() -> None:
    """What the init gets is what was planned: every field arrives."""
    config = with_namespace("user", uidMappings=MAPS, gidMappings=MAPS)
    config["process"]["scheduler"] = {"policy": "SCHED_BATCH"}
    config["mounts"].append({"destination": "/a", "source": "/b", "options": ["rbind", "ridmap"]})
    init = plan(config).init
    assert from_wire(to_wire(init)) == init


def test_golden_plan_of_the_bundle_that_spec_writes() -> None:
    """A change of this file is a change of what every container gets.  To accept it: UPDATE_GOLDEN=1."""
    text = dumps(to_plain(plan(default_spec())), 1) + "\n"
    same_as_golden(GOLDEN, text)


@pytest.mark.parametrize(
    "path, own, driver, warned",
    [
        ("", "/user.slice/app.slice/run-1.scope", "cgroupfs", "app.slice"),
        ("c", "/system.slice/caller.service", "cgroupfs", "system.slice"),
        ("/c", "/user.slice/app.slice/run-1.scope", "cgroupfs", ""),
        ("", "/user.slice/app.slice/run-1.scope/below", "cgroupfs", ""),
        ("", "/", "cgroupfs", ""),
        ("", "/user.slice/app.slice/run-1.scope", "systemd", ""),
    ],
)
def test_limits_in_a_slice_that_systemd_manages(path: str, own: str, driver: str, warned: str) -> None:
    """systemd takes a controller from a slice when no unit of its own needs it; runc and crun say nothing of it."""
    config = set_path(set_path(base(), "linux.cgroupsPath", path), "linux.resources.pids.limit", 7)
    host = replace(HOST, own_cgroup=own)
    wanted = f"limits can be lost: the cgroup is made in {warned}, which is systemd's: use --systemd-cgroup"
    assert plan(config, host, cgroup_manager=driver).warnings == ((wanted,) if warned else ())
    set_path(config, "linux.resources", {})
    assert plan(config, host, cgroup_manager=driver).warnings == ()
