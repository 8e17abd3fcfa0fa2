"""update: limits of a container that is there, all of them or none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.runtime import Container, Result, Runtime

pytestmark = pytest.mark.native

FOREVER = "echo up; while :; do sleep 0.02; done"


@pytest.fixture
def cgroup(container: Container, bed: Bed) -> Path:
    return bed.cgroup(container.cgroup())


def update(container: Container, resources: dict[str, Any]) -> Result:
    return container.runtime("update", "--resources", "-", container.id, stdin=json.dumps(resources).encode())


def value(cgroup: Path, file: str) -> str:
    return (cgroup / file).read_text().strip()


@pytest.mark.needs("memory")
def test_memory_by_options(container: Container, cgroup: Path) -> None:
    runtime = container.runtime
    assert runtime("update", "--memory", "64m", "--memory-reservation", "32m", "--memory-swap", "96m", container.id).rc == 0
    assert value(cgroup, "memory.max") == str(64 << 20)
    assert value(cgroup, "memory.low") == str(32 << 20)
    assert value(cgroup, "memory.swap.max") == str(32 << 20)
    assert runtime("update", "--memory", "-1", container.id).rc == 0
    assert value(cgroup, "memory.max") == "max"
    assert value(cgroup, "memory.swap.max") == "max"


@pytest.mark.gpurun_only
@pytest.mark.parametrize("option", ["--l3-cache-schema=L3:0=f", "--mem-bw-schema=MB:0=50"])
def test_resctrl_of_a_container_without(container: Container, option: str) -> None:
    result = container.runtime("update", option, container.id)
    assert result.rc == 1 and "updating a non-existent Intel RDT configuration is not supported" in result.text


@pytest.mark.needs("memory")
def test_limits_below_what_is_used_are_refused_when_asked(container: Container, cgroup: Path) -> None:
    result = update(container, {"memory": {"limit": 4096, "checkBeforeUpdate": True}})
    assert result.rc == 1
    assert "rejecting memory limit 4096 <= usage" in result.text
    assert value(cgroup, "memory.max") == "max"


@pytest.mark.needs("cpu")
def test_halves_of_cpu_max(container: Container, cgroup: Path) -> None:
    runtime = container.runtime
    assert runtime("update", "--cpu-quota", "50000", "--cpu-period", "200000", container.id).rc == 0
    assert value(cgroup, "cpu.max") == "50000 200000"
    assert runtime("update", "--cpu-quota", "60000", container.id).rc == 0
    assert value(cgroup, "cpu.max") == "60000 200000"
    assert runtime("update", "--cpu-period", "100000", container.id).rc == 0
    assert value(cgroup, "cpu.max") == "60000 100000"
    assert runtime("update", "--cpu-period", "10", container.id).rc == 1
    assert value(cgroup, "cpu.max") == "60000 100000"
    assert runtime("update", "--cpu-share", "2048", container.id).rc == 0
    assert value(cgroup, "cpu.max") == "60000 100000"
    assert runtime("update", "--cpu-quota", "-1", container.id).rc == 0
    assert value(cgroup, "cpu.max") == "max 100000"


@pytest.mark.needs("pids")
@pytest.mark.parametrize(("given", "found"), [("10", "10"), ("0", "1"), ("-1", "max")])
def test_pids(container: Container, cgroup: Path, given: str, found: str) -> None:
    assert container.runtime("update", "--pids-limit", given, container.id).rc == 0
    assert value(cgroup, "pids.max") == found


@pytest.mark.needs("memory", "cpu")
def test_all_or_nothing_across_controllers(container: Container, cgroup: Path) -> None:
    assert update(container, {"memory": {"limit": 100 << 20}, "cpu": {"quota": 50000, "period": 100000}}).rc == 0
    result = update(container, {"memory": {"limit": 200 << 20}, "cpu": {"quota": 1, "period": 100000}})
    assert result.rc == 1
    assert value(cgroup, "memory.max") == str(100 << 20)
    assert value(cgroup, "cpu.max") == "50000 100000"


@pytest.mark.parametrize("form", ["-", "file", "=-"])
def test_where_resources_are_read_from(container: Container, form: str, cgroup: Path) -> None:
    text = json.dumps({"unified": {"cgroup.max.depth": "7"}})
    if container.runtime.name != "gpurun":
        text = json.dumps({"blockIO": {}})  # runc knows files of controllers only
    if form == "file":
        path = container.files / "resources.json"
        path.write_text(text)
        result = container.runtime("update", "-r", str(path), container.id)
    elif form == "-":
        result = container.runtime("update", "--resources", "-", container.id, stdin=text.encode())
    else:
        result = container.runtime("update", "--resources=-", container.id, stdin=text.encode())
    assert (result.rc, result.out) == (0, ""), result
    if container.runtime.name == "gpurun":
        assert value(cgroup, "cgroup.max.depth") == "7"


@pytest.mark.gpurun_only
def test_all_or_nothing(container: Container, cgroup: Path) -> None:
    assert update(container, {"unified": {"cgroup.max.depth": "7"}}).rc == 0
    saved = (container.runtime.root / container.id / "config.json").read_text()
    result = update(container, {"unified": {"cgroup.max.depth": "9", "cgroup.max.descendants": "many"}})
    assert result.rc == 1
    assert "cgroup.max.descendants" in result.text, "the file that refused it is named"
    assert value(cgroup, "cgroup.max.depth") == "7"
    assert value(cgroup, "cgroup.max.descendants") == "max"
    assert (container.runtime.root / container.id / "config.json").read_text() == saved


@pytest.mark.gpurun_only
def test_saved_config_has_the_new_limits_and_all_else(container: Container) -> None:
    path = container.runtime.root / container.id / "config.json"
    before = json.loads(path.read_text())
    assert update(container, {"unified": {"cgroup.max.depth": "7"}}).rc == 0
    after = json.loads(path.read_text())
    assert after["linux"]["resources"].pop("unified") == {"cgroup.max.depth": "7"}
    assert after == before
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "resources",
    [
        {},
        {"memory": {}, "cpu": {"cpus": "", "mems": ""}, "blockIO": {"weight": 0}, "devices": None},
        pytest.param(
            {"memory": None, "cpu": None, "pids": None, "blockIO": None, "unified": None},
            marks=pytest.mark.not_on("runc 1.1", reason="panics"),
        ),
        {"cpu": {"shares": 0, "quota": 0, "period": 0}, "memory": {"limit": 0, "swap": 0, "reservation": 0}},
        {"devices": [{"allow": True, "access": "rwm"}]},
    ],
)
def test_what_asks_for_nothing(container: Container, resources: dict[str, Any]) -> None:
    assert update(container, resources).rc == 0


def test_devices_stay_as_they_are(container: Container) -> None:
    """Neither for a moment nor for good: what may be opened is not update's."""
    loop = "for i in 1 2 3 4 5 6 7 8 9 10; do echo x >/dev/null || exit 1; head -c 1 /dev/zero >/dev/null || exit 2; done"
    files = container.runtime.new_files()
    other = container.runtime.popen("exec", container.id, "sh", "-c", loop, files=files)
    for _ in range(10):
        assert update(container, {"devices": [{"allow": True, "access": "rwm"}], "cpu": {}}).rc == 0
    assert other.wait(30) == 0, (files / "err").read_text()
    denied = container.runtime("exec", container.id, "sh", "-c", "mknod /tmp/sda b 8 0 && cat /tmp/sda")
    assert denied.rc != 0


def test_paused_stays_paused(container: Container) -> None:
    container.runtime("pause", container.id)
    assert update(container, {"memory": {}}).rc == 0
    assert container.state()["status"] == "paused"


@pytest.mark.gpurun_only
def test_created(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.create(bundle().sh("exit 4"))
    assert update(container, {"unified": {"cgroup.max.depth": "3"}}).rc == 0
    container.start()
    assert container.wait() == 4


def test_stopped(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(bundle().args("true"))
    container.wait()
    result = update(container, {})
    assert result.rc == 1
    assert "container not running" in result.text


def test_unknown_container(runtime: Runtime) -> None:
    result = runtime("update", "--memory", "64m", "nosuchcontainer")
    assert result.rc == 1
    assert "does not exist" in result.text


@pytest.mark.parametrize("text", ["", "[]", "{", '{"memory": {"limit": "lots"}}', '{"unified": {"../x": "1"}}'])
def test_bad_resources(container: Container, text: str) -> None:
    result = container.runtime("update", "--resources", "-", container.id, stdin=text.encode())
    if container.runtime.name == "runc" and "unified" in text:
        pytest.skip("runc on a hybrid machine does not look at it")
    assert result.rc == 1
    assert result.err


@pytest.mark.parametrize("options", [("--memory", "lots"), ("--cpu-quota", "1.5"), ("--pids-limit", "x")])
def test_bad_options(container: Container, options: tuple[str, ...]) -> None:
    assert container.runtime("update", *options, container.id).rc == 1


@pytest.mark.gpurun_only
def test_missing_controller(container: Container, bed: Bed) -> None:
    missing = sorted({"memory", "cpu", "pids"} - bed.controllers)
    if not missing:
        pytest.skip("this machine has all controllers in cgroup v2")
    resources = {"memory": {"memory": {"limit": 1 << 26}}, "cpu": {"cpu": {"quota": 5000}}, "pids": {"pids": {"limit": 9}}}
    result = update(container, resources[missing[0]])
    assert result.rc == 1
    assert missing[0] in result.text


@pytest.mark.gpurun_only
@pytest.mark.needs("memory")
def test_a_systemd_unit_is_told(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """Else systemd would take the new limit back at its next reload."""
    if not Path("/run/systemd/system").exists():
        pytest.skip("systemd does not run here")
    b = bundle().sh(FOREVER)
    container_id = runtime.new_id()
    b.linux["cgroupsPath"] = f"system.slice:test:{container_id}"
    container = runtime.create(b, container_id=container_id, globals_=["--systemd-cgroup"])
    cgroup, unit = bed.cgroup(container.cgroup()), f"test-{container_id}.scope"
    assert update(container, {"memory": {"limit": 64 << 20}, "pids": {"limit": 77}}).rc == 0
    assert subprocess.check_output(["systemctl", "show", "-P", "MemoryMax", unit], text=True).strip() == str(64 << 20)
    subprocess.check_call(["systemctl", "daemon-reload"])
    assert value(cgroup, "memory.max") == str(64 << 20)
    assert value(cgroup, "pids.max") == "77"
    assert update(container, {"memory": {"limit": 32 << 20}, "unified": {"cgroup.max.descendants": "many"}}).rc == 1
    assert value(cgroup, "memory.max") == str(64 << 20)
    assert subprocess.check_output(["systemctl", "show", "-P", "MemoryMax", unit], text=True).strip() == str(64 << 20)
