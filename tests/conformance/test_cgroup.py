"""config-linux.md "Control groups" and "Unified"."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.levels import must, should
from tests.conformance.refused import refused
from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native


@must("config-linux.md: Cgroups Path")
@pytest.mark.parametrize("form", ["{subtree}/{id}", "{subtree}/deep/er/{id}"])
def test_config_linux_cgroups_path_absolute(runtime: Runtime, bundle: MakeBundle, bed: Bed, form: str) -> None:
    """an absolute path MUST be taken to be relative to the cgroups mount point"""
    b = bundle()
    container_id = runtime.new_id()
    b.linux["cgroupsPath"] = form.format(subtree=bed.subtree, id=container_id)
    container = runtime.create(b, container_id=container_id)
    assert container.cgroup() == b.linux["cgroupsPath"]
    assert str(container.pid) in (bed.cgroup(container.cgroup()) / "cgroup.procs").read_text().split()


@must("config-linux.md: Cgroups Path")
@pytest.mark.parametrize("form", ["{subtree}/same", "same"], ids=["absolute", "relative"])
def test_config_linux_cgroups_path_is_consistent(runtime: Runtime, bundle: MakeBundle, bed: Bed, form: str) -> None:
    """MUST consistently attach to the same place in the hierarchy given the same value"""
    places = []
    for _ in range(2):
        b = bundle()
        b.linux["cgroupsPath"] = form.format(subtree=bed.subtree)
        container = runtime.create(b)
        places.append(container.cgroup())
        container.delete("--force")
    assert places[0] == places[1]
    assert places[0].endswith("/same")


@must("config-linux.md: Cgroups Path")
def test_config_linux_cgroups_are_created(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """the cgroups will be created if they don't exist, and go with the container"""
    container_id = runtime.new_id()
    group = bed.cgroup(f"{bed.subtree}/{container_id}")
    assert not group.exists()
    container = runtime.create(bundle(), container_id=container_id)
    assert group.is_dir()
    container.delete("--force")
    assert not group.exists()


@must("config-linux.md: Control groups")
def test_config_linux_cgroup_holds_all_processes(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """all processes of the container are in its cgroup"""
    container = runtime.start(bundle().sh("sleep 1000 & sleep 1000 & echo up; wait"))
    container.wait_for("up")
    assert len((bed.cgroup(container.cgroup()) / "cgroup.procs").read_text().split()) == 3


def with_cgroup(bundle: Bundle, *options: str) -> Bundle:
    (bundle.rootfs / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)
    return bundle.mount("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", *options, kind="cgroup")


STAT = ("stat", "-c", "%u", "/sys/fs/cgroup", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/cgroup.max.depth")


@pytest.mark.not_on("runc", reason="only its systemd driver gives the cgroup away")
@should("config-linux.md: Cgroup ownership")
def test_config_linux_cgroup_ownership_is_the_containers(runtime: Runtime, bundle: MakeBundle) -> None:
    """SHOULD change the cgroup ownership if the cgroup file system is mounted read/write, of the delegated files only"""
    assert runtime.output(with_cgroup(bundle().user_namespace(), "rw").args(*STAT)).split() == ["0", "0", "65534"]


@pytest.mark.not_on("crun", reason="gives the cgroup away all the same")
@should("config-linux.md: Cgroup ownership")
@pytest.mark.parametrize("case", ["read-only", "no cgroup namespace"])
def test_config_linux_cgroup_ownership_stays(runtime: Runtime, bundle: MakeBundle, case: str) -> None:
    """SHOULD NOT change it if it is mounted read-only, or without a new cgroup namespace"""
    b = bundle().user_namespace().sh("echo up; sleep 1000")
    with_cgroup(b, "ro" if case == "read-only" else "rw")
    if case != "read-only":
        b.without_namespace("cgroup")
    container = runtime.create(b)
    group = runtime.bed.cgroup(container.cgroup())
    assert group.stat().st_uid == (group / "cgroup.procs").stat().st_uid == 0


@must("config-linux.md: Unified")
@pytest.mark.parametrize(("name", "value"), [("cgroup.max.descendants", "7"), ("cgroup.max.depth", "3")])
def test_config_linux_unified_is_written(runtime: Runtime, bundle: MakeBundle, bed: Bed, name: str, value: str) -> None:
    """configuration unknown to the runtime MUST still be written to the relevant file"""
    b = bundle()
    b.linux["resources"]["unified"] = {name: value}
    container = runtime.create(b)
    assert (bed.cgroup(container.cgroup()) / name).read_text() == f"{value}\n"


@must("config-linux.md: Unified")
@pytest.mark.needs("hugetlb")
def test_config_linux_unified_enables_the_controller(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """MUST ensure that the needed cgroup controllers are enabled for the cgroup"""
    b = bundle()
    b.linux["resources"]["unified"] = {"hugetlb.2MB.max": str(4 << 20)}
    container = runtime.create(b)
    assert (bed.cgroup(container.cgroup()) / "hugetlb.2MB.max").read_text() == f"{4 << 20}\n"


@pytest.mark.not_on("crun", reason="leaves the cgroup behind")
@must("config-linux.md: Unified")
@pytest.mark.parametrize("key", ["nosuch.max", "nosuchcontroller.weight"])
def test_config_linux_unified_of_a_controller_that_is_not_there(runtime: Runtime, bundle: MakeBundle, key: str) -> None:
    """MUST generate an error when the configuration refers to a controller that is not present"""
    b = bundle()
    b.linux["resources"]["unified"] = {key: "1"}
    refused(runtime, b)


RESOURCES: list[tuple[str, dict[str, Any], str, str]] = [
    ("memory", {"memory": {"limit": 64 << 20}}, "memory.max", str(64 << 20)),
    ("memory", {"memory": {"limit": 64 << 20, "reservation": 32 << 20}}, "memory.low", str(32 << 20)),
    ("cpu", {"cpu": {"quota": 50000, "period": 100000}}, "cpu.max", "50000 100000"),
    ("cpuset", {"cpu": {"cpus": "0"}}, "cpuset.cpus", "0"),
    ("pids", {"pids": {"limit": 17}}, "pids.max", "17"),
    ("hugetlb", {"hugepageLimits": [{"pageSize": "2MB", "limit": 4 << 20}]}, "hugetlb.2MB.max", str(4 << 20)),
]


@must("config-linux.md: Memory, CPU, PIDs, Huge page limits")
@pytest.mark.parametrize(("controller", "resources", "file", "value"), RESOURCES, ids=[r[2] for r in RESOURCES])
def test_config_linux_resources(
    runtime: Runtime,
    bundle: MakeBundle,
    bed: Bed,
    controller: str,
    resources: dict[str, Any],
    file: str,
    value: str,
) -> None:
    """limits MUST be applied (where this machine has the controller)"""
    if controller not in bed.controllers:
        pytest.skip("the controller is not in this machine's cgroup v2")
    b = bundle()
    b.linux["resources"].update(resources)
    assert (bed.cgroup(runtime.create(b).cgroup()) / file).read_text() == f"{value}\n"


@pytest.mark.not_on("crun", reason="leaves the cgroup behind")
@must("config-linux.md: Memory, CPU, PIDs, Huge page limits")
@pytest.mark.parametrize(("controller", "resources", "file", "value"), RESOURCES, ids=[r[2] for r in RESOURCES])
def test_config_linux_resources_that_cannot_be_applied(
    runtime: Runtime,
    bundle: MakeBundle,
    bed: Bed,
    controller: str,
    resources: dict[str, Any],
    file: str,
    value: str,
) -> None:
    """... and are an error where they cannot be (where it lacks the controller)"""
    if controller in bed.controllers:
        pytest.skip("this machine has the controller")
    b = bundle()
    b.linux["resources"].update(resources)
    refused(runtime, b)
