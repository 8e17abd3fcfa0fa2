"""What the entries of ``mounts`` and ``linux.devices`` become, beside what tests/engine/plan says of whole configs."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.linux.process import CLONE_NEWNS
from gpurun.ns.mount_plan import (
    DEFAULT_DEVICES,
    DeviceStep,
    MountStep,
    dev_is_bind,
    failed_mount,
    is_late,
    plan_devices,
    plan_mounts,
)
from gpurun.ns.namespaces import NamespacePlan
from gpurun.oci.config import Device, IdMapping, Mount
from tests.engine.plan.planning import base, plan

ROOTFS = "/bundle/rootfs"
OWN = NamespacePlan(CLONE_NEWNS)
MAPPING = (IdMapping(0, 100000, 65536),)


class Linux:
    mount_label = "system_u:object_r:x:s0"


class Given:
    """As much of a config as its mounts need."""

    linux = Linux()

    def __init__(self, *mounts: Mount) -> None:
        self.mounts = mounts


def steps(*mounts: Mount, namespaces: NamespacePlan = OWN) -> tuple[MountStep, ...]:
    return plan_mounts(Given(*mounts), "/bundle", ROOTFS, namespaces)  # type: ignore[arg-type]


def refused(*mounts: Mount, namespaces: NamespacePlan = OWN) -> str:
    with pytest.raises(ConfigError) as error:
        steps(*mounts, namespaces=namespaces)
    return str(error.value)


@pytest.mark.parametrize(
    ("destination", "meant"),
    [
        ("/data", "/data"),
        ("data/./x/", "/data/x"),
        (f"{ROOTFS}/data", "/data"),
        (f"{ROOTFS}s/data", f"{ROOTFS}s/data"),
        ("/a/../../b", "/b"),
    ],
)
def test_where_it_is_mounted(destination: str, meant: str) -> None:
    (step,) = steps(Mount(destination, "bind", "/srv"))
    assert (step.kind, step.source, step.destination) == ("bind", "/srv", meant)


@pytest.mark.parametrize("destination", ["/", "/.", "/a/..", f"{ROOTFS}/"])
def test_the_root_is_no_destination(destination: str) -> None:
    """Its path on the host is one of the container, for it is not below itself."""
    if destination == f"{ROOTFS}/":
        assert steps(Mount(destination, "bind", "/srv"))[0].destination == ROOTFS
    else:
        assert "is the root itself" in refused(Mount(destination, "bind", "/srv"))


@pytest.mark.parametrize(
    ("kind", "options", "source", "meant"),
    [
        ("bind", (), "srv", "/bundle/srv"),
        ("", ("bind",), "srv", "/bundle/srv"),
        ("none", ("rbind",), "/srv", "/srv"),
        ("tmpfs", ("bind",), "srv", "/bundle/srv"),
        ("tmpfs", (), "srv", "srv"),
    ],
)
def test_the_source_of_a_bind_mount_is_a_path(kind: str, options: tuple[str, ...], source: str, meant: str) -> None:
    (step,) = steps(Mount("/data", kind, source, options))
    assert step.source == meant and step.kind == ("bind" if meant.startswith("/") else "tmpfs")


@pytest.mark.parametrize(("kind", "options"), [("bind", ()), ("", ("bind",)), ("none", ("remount",))])
def test_a_remount_needs_neither_source_nor_kind(kind: str, options: tuple[str, ...]) -> None:
    (step,) = steps(Mount("/data", kind, "", (*options, "remount")))
    assert step.options.remount and step.kind == ("none" if options == ("remount",) else "bind")
    if options != ("remount",):
        assert refused(Mount("/data", kind, "", options)).endswith("is missing, a bind mount needs one")


@pytest.mark.parametrize("kind", ["cgroup", "cgroup2"])
def test_options_of_the_hosts_cgroup2(kind: str) -> None:
    """A container may name those that there are; the host's decide."""
    (step,) = steps(Mount("/sys/fs/cgroup", kind, "cgroup", ("nsdelegate", "memory_recursiveprot", "ro")))
    assert step.kind == "cgroup" and step.options.data == ("nsdelegate", "memory_recursiveprot")
    said = refused(Mount("/sys/fs/cgroup", kind, "cgroup", ("nsdelegate", "nsdelegat")))
    assert said.startswith("mounts[0].options: cgroup2 has no option nsdelegat") and "option nsdelegate," not in said


@pytest.mark.parametrize("kind", ["tmpfs", "mqueue", "devpts", "proc", "sysfs", "cgroup", "bind"])
def test_which_mounts_have_the_containers_label(kind: str) -> None:
    (step,) = steps(Mount("/data", kind, "/srv"))
    assert step.label == (Linux.mount_label if kind in ("tmpfs", "mqueue", "devpts") else "")


@pytest.mark.parametrize("kind", ["proc", "sysfs", "tmpfs"])
def test_a_copy_of_what_was_there_is_a_tmpfs(kind: str) -> None:
    mount = Mount("/data", kind, kind, ("tmpcopyup",))
    if kind == "tmpfs":
        assert steps(mount)[0].options.copy_up
    else:
        assert refused(mount) == "mounts[0].options: tmpcopyup is for tmpfs"


def test_nothing_but_files_is_mounted_inside_proc() -> None:
    assert "inside /proc" in refused(Mount("/proc/sys", "tmpfs", "tmpfs"))
    assert steps(Mount("/proc", "proc", "proc"), Mount("/process", "tmpfs", "tmpfs"))[1].destination == "/process"


@pytest.mark.parametrize(
    ("uids", "gids", "missing"), [(MAPPING, (), "gidMappings"), ((), MAPPING, "uidMappings"), (MAPPING, MAPPING, "")]
)
def test_an_id_map_has_both_its_maps(uids: Any, gids: Any, missing: str) -> None:
    mount = Mount("/data", "bind", "/srv", (), uids, gids)
    if missing:
        assert refused(mount).startswith(f"mounts[0].{missing}: is missing")
    else:
        made = steps(mount)[0].idmap
        assert made is not None and (made.recursive, made.uid_map) == (False, "0 100000 65536\n")


def test_an_id_map_needs_a_mount_namespace() -> None:
    mount = Mount("/data", "bind", "/srv", (), MAPPING, MAPPING)
    assert refused(mount, namespaces=NamespacePlan(0)) == "mounts[0]: id-mapped mounts need a mount namespace"


def test_the_namespaces_maps_are_those_of_their_kind() -> None:
    namespaces = NamespacePlan(CLONE_NEWNS, uids="0 1 2\n", gids="0 3 4\n")
    made = steps(Mount("/data", "bind", "/srv", ("idmap",)), namespaces=namespaces)[0].idmap
    assert made is not None and (made.uid_map, made.gid_map) == ("0 1 2\n", "0 3 4\n")


@pytest.mark.parametrize(
    ("kind", "source", "late"),
    [("bind", f"{ROOTFS}/etc", True), ("bind", ROOTFS, False), ("bind", f"{ROOTFS}s/etc", False), ("tmpfs", "x", False)],
)
def test_a_source_in_the_rootfs_is_opened_late(kind: str, source: str, late: bool) -> None:
    (step,) = steps(Mount("/data", kind, source))
    assert is_late(step, ROOTFS) is late


@pytest.mark.parametrize(
    ("destination", "kind", "bind"), [("/dev", "bind", True), ("/dev", "tmpfs", False), ("/dev/shm", "bind", False)]
)
def test_whether_dev_is_the_hosts(destination: str, kind: str, bind: bool) -> None:
    assert dev_is_bind(steps(Mount("/x", "bind", "/srv"), Mount(destination, kind, "/dev"))) is bind


def test_the_error_of_a_mount_names_its_source_or_its_kind() -> None:
    """dockerd looks for these words."""
    some, none = steps(Mount("/data", "bind", "/srv"), Mount("/t", "tmpfs"))
    assert str(failed_mount(some, "no")) == 'mounts[0]: error mounting "/srv" to rootfs at "/data": no'
    assert str(failed_mount(none, "no")) == 'mounts[1]: error mounting "tmpfs" to rootfs at "/t": no'


# ---- device nodes


def devices(*given: Device) -> dict[str, DeviceStep]:
    made = plan_devices(given)
    found = {step.path: step for step in made}
    assert len(found) == len(made), "no path twice"
    return found


def test_the_default_devices() -> None:
    assert plan_devices(()) == DEFAULT_DEVICES
    assert {(d.path, d.type, d.major, d.minor, d.mode) for d in DEFAULT_DEVICES} == {
        ("/dev/null", "c", 1, 3, 0o666),
        ("/dev/zero", "c", 1, 5, 0o666),
        ("/dev/full", "c", 1, 7, 0o666),
        ("/dev/random", "c", 1, 8, 0o666),
        ("/dev/urandom", "c", 1, 9, 0o666),
        ("/dev/tty", "c", 5, 0, 0o666),
    }


def test_a_device_takes_the_place_of_a_default_one() -> None:
    found = devices(Device("/dev/./null", "c", 1, 5, 0o600, 7, 8), Device("/dev/x", "b", 8, 1))
    assert found["/dev/null"] == DeviceStep("/dev/null", "c", 1, 5, 0o600, 7, 8)
    assert found["/dev/x"] == DeviceStep("/dev/x", "b", 8, 1, 0o666, 0, 0) and len(found) == len(DEFAULT_DEVICES) + 1


@pytest.mark.parametrize(("given", "mode"), [(None, 0o666), (0, 0), (0o20640, 0o640), (0o4755, 0o4755)])
def test_the_mode_of_a_device_is_its_permissions(given: int | None, mode: int) -> None:
    assert devices(Device("/dev/x", "c", 1, 3, given))["/dev/x"].mode == mode


@pytest.mark.parametrize(("kind", "made"), [("c", "c"), ("u", "c"), ("b", "b"), ("p", "p"), ("s", ""), ("", "")])
def test_kinds_of_devices(kind: str, made: str) -> None:
    if made:
        assert devices(Device("/dev/x", kind, 1, 3))["/dev/x"].type == made
        return
    with pytest.raises(ConfigError, match=r"linux\.devices\[0\]\.type: invalid device type"):
        plan_devices((Device("/dev/x", kind, 1, 3),))


def test_ptmx_is_no_node() -> None:
    assert "/dev/ptmx" not in devices(Device("/dev/ptmx", "c", 5, 2))


@pytest.mark.parametrize(("major", "minor"), [(0, 0), ((1 << 12) - 1, (1 << 20) - 1)])
def test_the_highest_numbers_of_a_device(major: int, minor: int) -> None:
    """tests/attacks/test_bad_numbers.py has those beyond them."""
    found = devices(Device("/dev/x", "c", major, minor))["/dev/x"]
    assert (found.major, found.minor) == (major, minor)


def test_a_pipe_has_no_numbers() -> None:
    assert devices(Device("/dev/x", "p", 1 << 12, 1 << 20))["/dev/x"].type == "p"


def test_a_device_has_an_absolute_path() -> None:
    config: dict[str, Any] = base()
    config["linux"]["devices"] = [{"path": "dev/x", "type": "c", "major": 1, "minor": 3}]
    with pytest.raises(ConfigError, match=r'linux\.devices\[0\]\.path: "dev/x" must be an absolute path'):
        plan(config)
