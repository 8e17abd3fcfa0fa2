"""Which service manager is asked, and where it is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.cgroup import service_manager as sm
from gpurun.cgroup.resources import plan_resources
from gpurun.cgroup.service_manager import Endpoint, UserManager
from gpurun.cgroup.tree import Tree
from gpurun.engine.plan.container import Host
from gpurun.errors import ConfigError
from gpurun.oci.resources import read_resources
from tests.engine.plan.planning import base, plan, set_path

RUN = b"/run/user/1000"


@pytest.mark.parametrize(
    ("environ", "euid", "expected"),
    [
        ({b"XDG_RUNTIME_DIR": RUN}, 1000, ["/run/user/1000/systemd/private", "bus /run/user/1000/bus"]),
        ({}, 1000, ["/run/user/1000/systemd/private", "bus /run/user/1000/bus"]),
        ({}, 0, []),
        ({b"DBUS_SESSION_BUS_ADDRESS": b"unix:path=/a%20b"}, 0, ["bus /a b"]),
        (
            {b"XDG_RUNTIME_DIR": RUN, b"DBUS_SESSION_BUS_ADDRESS": b"tcp:host=x;unix:abstract=/tmp/d,guid=12"},
            1000,
            ["/run/user/1000/systemd/private", "bus @/tmp/d", "bus /run/user/1000/bus"],
        ),
        (
            {b"XDG_RUNTIME_DIR": RUN, b"DBUS_SESSION_BUS_ADDRESS": b"unix:path=/run/user/1000/bus"},
            1000,
            ["/run/user/1000/systemd/private", "bus /run/user/1000/bus"],
        ),
    ],
)
def test_where_a_users_manager_is(environ: dict[bytes, bytes], euid: int, expected: list[str]) -> None:
    found = sm.user_endpoints(environ, euid)
    assert [("bus " if one.bus else "") + one.address for one in found] == expected
    assert all(one.user for one in found)


@pytest.mark.parametrize("address", ["", "unix:", "unix:tmpdir=/tmp", "unix:path=", "unixexec:path=/x", "unix:path=%zz"])
def test_what_is_no_address(address: str) -> None:
    assert sm.unix_address(address) == ""


@pytest.mark.parametrize(
    ("endpoint", "transient"),
    [
        (Endpoint("/run/systemd/private"), "/run/systemd/transient"),
        (Endpoint("/run/user/7/systemd/private", user=True), "/run/user/7/systemd/transient"),
        (Endpoint("/run/user/7/bus", bus=True, user=True), "/run/user/7/systemd/transient"),
        (Endpoint("@/a b", bus=True, user=True), ""),
    ],
)
def test_it_is_found_again(endpoint: Endpoint, transient: str) -> None:
    assert sm.parse_endpoint(endpoint.text) == endpoint and endpoint.transient == transient


@pytest.mark.parametrize(
    ("rootless", "euid", "in_namespace", "socket_is_ours", "users"),
    [
        ("auto", 1000, False, False, True),
        ("auto", 0, False, True, False),
        ("auto", 0, False, False, False),
        ("auto", 0, True, True, False),  # a container with a systemd of its own
        ("auto", 0, True, False, True),  # rootless Podman and its like
        ("true", 0, False, True, True),
        ("false", 0, True, False, False),
        ("false", 1000, False, False, True),
    ],
)
def test_whose_manager(
    monkeypatch: pytest.MonkeyPatch, rootless: str, euid: int, in_namespace: bool, socket_is_ours: bool, users: bool
) -> None:
    monkeypatch.setattr(sm, "_is_ours", lambda path: socket_is_ours)
    assert sm.wants_user_manager(rootless, euid, lambda: in_namespace) is users


def test_anothers_socket_is_not_ours(tmp_path: Path) -> None:
    assert not sm._is_ours(str(tmp_path / "none"))


USER = UserManager(
    Endpoint("/run/user/1000/systemd/private", user=True),
    "/user.slice/user-1000.slice/user@1000.service",
    ("cpu", "memory", "pids"),
)
HOST = Host(Tree("/sys/fs/cgroup", USER.controllers, hint=sm.NOT_DELEGATED), own_cgroup="/", last_cap=40, user_manager=USER)


def test_the_plan_is_below_the_manager() -> None:
    config = set_path(base(), "linux.resources.pids", {"limit": 3})
    made = plan(config, HOST, cgroup_manager="systemd")
    scope = made.cgroup.scope
    assert made.cgroup.path == f"/sys/fs/cgroup{USER.cgroup}/user.slice/gpurun-c1.scope"
    assert scope is not None and scope.manager == USER.endpoint.text and scope.slice == "user.slice"
    names = [one.name for one in scope.limits]
    assert "TasksMax" in names and "DeviceAllow" not in names, "only root may restrict devices"


def test_what_is_not_delegated_is_said() -> None:
    for resources, words in (
        (
            {"cpu": {"cpus": "0"}},
            r"linux.resources.cpu.cpus: .*not delegated to your service manager.*Delegate=cpu cpuset io",
        ),
        ({"hugepageLimits": [{"pageSize": "2MB", "limit": 1}]}, r'"hugetlb" is not available: the kernel lacks'),
    ):
        with pytest.raises(ConfigError, match=words):
            plan_resources(read_resources(resources), HOST.tree.controllers, hint=HOST.tree.hint)


def test_a_controller_of_v1_cannot_be_delegated(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a hybrid host no Delegate= helps."""
    from gpurun.cgroup import systemd
    from gpurun.cgroup.service_manager import UserManager
    from gpurun.cgroup.tree import Tree
    from gpurun.engine.caller import bundle
    from gpurun.oci.config import read_config

    monkeypatch.setattr("gpurun.cgroup.tree.find_tree", lambda: Tree("/sys/fs/cgroup/unified", (), ("memory",)))
    monkeypatch.setattr(systemd, "find_user_manager", lambda root: UserManager(Endpoint("/run/x", user=True), "/user", ()))
    text = b'{"ociVersion": "1.0.2", "process": {"cwd": "/", "args": ["true"]}, "root": {"path": "r"}, "linux": {}}'
    found = bundle.read_host(read_config(text), "systemd", "true").tree
    assert found.bound_to_v1 == ("memory",) and found.hint
