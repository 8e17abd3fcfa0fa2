"""cgroup: where the container is put, what is limited, and what this machine cannot limit."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.runtime import Runtime
from tests.simdriver import SimulatedDriver, minor

pytestmark = pytest.mark.native


@pytest.mark.not_on("crun", reason="has other rules, and may kill all of the caller's cgroup at delete")
@pytest.mark.parametrize("path", [None, ""])
def test_without_a_path_beside_the_caller_by_id(runtime: Runtime, bundle: MakeBundle, bed: Bed, path: str | None) -> None:
    b = bundle()
    b.linux["cgroupsPath"] = path
    container = runtime.create(b)
    assert container.cgroup() == f"{bed.subtree}/{container.id}", "a sibling of the caller's own"


def test_dots_do_not_lead_out(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle()
    container_id = runtime.new_id()
    b.linux["cgroupsPath"] = f"/../../../..{bed.subtree}/x/../{container_id}"
    container = runtime.create(b, container_id=container_id)
    assert container.cgroup() == f"{bed.subtree}/{container_id}"


def test_cgroups_that_the_container_makes_go_too(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle().sh("mkdir -p /sys/fs/cgroup/a/b && echo 0 >/sys/fs/cgroup/a/b/cgroup.procs && echo up && sleep 1000")
    b.mount("/sys/fs/cgroup", "cgroup", "rw", kind="cgroup")
    container = runtime.start(b)
    container.wait_for("up")
    path = bed.cgroup(f"{bed.subtree}/{container.id}")
    assert (path / "a/b/cgroup.procs").read_text()
    assert container.delete("--force").rc == 0
    assert not path.exists()


def test_own_cgroup_is_the_root_inside(runtime: Runtime, bundle: MakeBundle) -> None:
    assert "0::/\n" in runtime.output(bundle().args("cat", "/proc/self/cgroup"))


def test_its_mount_gets_nothing_of_the_hosts(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """systemd shares the host's tree: as a slave of it, the container's mount would get what the host mounts there."""
    shared = [line for line in bed.mounts() if line.split()[4] == "/sys/fs/cgroup"][-1].split(" - ")[0].find(" shared:") > 0
    b = (
        bundle()
        .args("grep", " /sys/fs/cgroup ", "/proc/self/mountinfo")
        .mount("/sys/fs/cgroup", "cgroup", "ro", kind="cgroup")
    )
    enter = bed.enter()
    try:
        subprocess.run(["mount", "--make-shared", "/sys/fs/cgroup"], check=True, preexec_fn=enter)
        assert runtime.output(b).split(" - ")[0].split()[6:] == []
    finally:
        if not shared:
            subprocess.run(["mount", "--make-private", "/sys/fs/cgroup"], check=True, preexec_fn=enter)


@pytest.mark.not_on("runc 1.1", reason="only warns")
def test_a_cgroup_that_has_processes_is_refused(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    first = runtime.create(bundle())
    b = bundle()
    b.linux["cgroupsPath"] = first.cgroup()
    text = runtime.refused(b)
    assert "container's cgroup is not empty: 1 process(es) found" in text
    assert first.state()["status"] == "created"


@pytest.mark.needs("hugetlb")
def test_hugetlb_limit(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    b = bundle()
    b.linux["resources"]["hugepageLimits"] = [{"pageSize": "2MB", "limit": 4 << 20}]
    container = runtime.create(b)
    directory = bed.cgroup(container.cgroup())
    assert (directory / "hugetlb.2MB.max").read_text() == f"{4 << 20}\n"
    if runtime.name != "runc":  # 1.1 does not limit reservations
        assert (directory / "hugetlb.2MB.rsvd.max").read_text() == f"{4 << 20}\n"


LIMITS: list[tuple[str, dict[str, Any], str, str]] = [
    ("memory", {"memory": {"limit": 64 << 20}}, "memory.max", f"{64 << 20}"),
    ("memory", {"memory": {"limit": 64 << 20, "reservation": 32 << 20}}, "memory.low", f"{32 << 20}"),
    ("cpu", {"cpu": {"quota": 50000, "period": 100000}}, "cpu.max", "50000 100000"),
    ("cpu", {"cpu": {"shares": 512}}, "cpu.weight", ""),
    ("pids", {"pids": {"limit": 17}}, "pids.max", "17"),
    ("cpuset", {"cpu": {"cpus": "0"}}, "cpuset.cpus", "0"),
    ("io", {"blockIO": {"weight": 100}}, "io.weight", ""),
]


@pytest.mark.parametrize(("controller", "resources", "file", "value"), LIMITS)
def test_limit_is_written_or_refused(
    runtime: Runtime, bundle: MakeBundle, bed: Bed, controller: str, resources: dict[str, Any], file: str, value: str
) -> None:
    b = bundle()
    b.linux["resources"].update(resources)
    if controller in bed.controllers:
        found = (bed.cgroup(runtime.create(b).cgroup()) / file).read_text().strip()
        # Without a value: the formula differs between versions of runtimes, and io.weight between schedulers.
        assert found == value if value else found not in ("", "100")
    elif runtime.name == "gpurun":
        text = runtime.refused(b)
        assert controller in text, "the sentence names the controller"
        assert "linux.resources" in text, "and the place in the config"
    else:
        pytest.skip(f"the {controller} controller is not in this machine's cgroup v2")


@pytest.mark.gpurun_only
def test_a_missing_controller_is_found_before_anything_is_made(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    missing = sorted({"memory", "cpu", "pids"} - bed.controllers)
    if not missing:
        pytest.skip("this machine has all controllers in cgroup v2")
    resources = {"memory": {"memory": {"limit": 1 << 26}}, "cpu": {"cpu": {"quota": 5000}}, "pids": {"pids": {"limit": 9}}}
    witness = runtime.directory / "hook-ran"
    b = bundle()
    b.linux["resources"].update(resources[missing[0]])
    b.config["hooks"] = {"createRuntime": [{"path": "/usr/bin/touch", "args": ["touch", str(witness)]}]}
    before = [*bed.cgroup(bed.subtree).iterdir()]
    runtime.refused(b)
    assert not witness.exists()
    assert not runtime.root.exists() or not [*runtime.root.iterdir()]
    assert [*bed.cgroup(bed.subtree).iterdir()] == before


@pytest.mark.parametrize(
    "resources",
    [
        {"memory": {}, "cpu": {}, "pids": {}, "blockIO": {}},
        {"memory": {"limit": 0, "swap": 0, "reservation": 0}},
        {"memory": {"limit": -1, "swap": -1}},
        {"cpu": {"shares": 0, "quota": 0, "period": 0, "cpus": "", "mems": ""}},
        {"blockIO": {"weight": 0}},
        {"memory": None, "cpu": None, "hugepageLimits": None, "unified": {}},
    ],
)
def test_what_asks_for_nothing_needs_no_controller(
    runtime: Runtime, bundle: MakeBundle, bed: Bed, resources: dict[str, Any]
) -> None:
    """Docker and Podman send such fields always."""
    if runtime.name == "runc" and "limit" in (resources.get("memory") or {}) and "memory" not in bed.controllers:
        pytest.skip("runc 1.1 needs the memory controller for this")
    b = bundle().args("echo", "hi")
    b.linux["resources"].update(resources)
    assert runtime.output(b) == "hi\n"


@pytest.mark.needs("memory")
def test_memory_limit_kills(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("head -c 200m /dev/zero | tail -n 1 | wc -c")
    b.linux["resources"]["memory"] = {"limit": 32 << 20, "swap": 32 << 20}
    assert "209715200" not in runtime.run(b).out


@pytest.mark.needs("pids")
def test_pids_limit_holds(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().sh("for i in 1 2 3 4 5 6 7 8 9; do sleep 1 & done; wait")
    b.linux["resources"]["pids"] = {"limit": 5}
    assert "Resource temporarily unavailable" in runtime.run(b).err


@pytest.mark.parametrize("key", ["../cgroup.procs", "a/b", "/x"])
def test_unified_key_is_a_file_name(runtime: Runtime, bundle: MakeBundle, key: str) -> None:
    b = bundle()
    b.linux["resources"]["unified"] = {key: "1"}
    runtime.refused(b)


@pytest.mark.gpurun_only
def test_gpus_without_a_cgroup(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    """``podman run --cgroups=disabled``: the caller's cgroup is the container's, and the GPUs are there."""
    node = f"/dev/nvidia{minor(0, 2)}"
    b = bundle().sh(f"(: <>{node}) 2>&1; ls /dev; cat /proc/driver/nvidia/version")
    b.process["env"].append("NVIDIA_VISIBLE_DEVICES=0")
    said = runtime.output(b, globals_=("--cgroup-manager", "disabled"), env=dict(os.environ) | host.env)
    assert "No such device or address" in said and "nvidiactl" in said and "NVRM version" in said
    explained = runtime(
        "explain", str(b.directory), globals_=("--cgroup-manager", "disabled"), env=dict(os.environ) | host.env
    )
    assert "all devices are allowed, those of other GPUs too" in explained.out, explained
