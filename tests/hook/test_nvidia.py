"""Request x driver → edits, against plans written down in ``golden/`` (``UPDATE_GOLDEN=1`` writes them anew)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.errors import ConfigError, GpuError
from gpurun.hook.driver import read_driver, roots_from_environment
from gpurun.hook.edits import ContainerEdits
from gpurun.hook.gpu import gpu_edits
from gpurun.hook.nvidia import edits
from gpurun.hook.request import GpuRequest, Policy, read_request
from gpurun.hook.settings import Settings
from tests.hook.rendering import rendered, same_as_golden
from tests.simdriver import Options, SimulatedDriver, bus_id, make, uuid

ALL = "compat32,compute,display,graphics,ngx,utility,video"

CASES = {
    "none": ("none", "compute,utility"),
    "all": ("all", "compute,utility"),
    "index": ("1", "compute,utility"),
    "utility": ("0", "utility"),
    "compute": ("0", "compute"),
    "video": ("0", "video"),
    "graphics": ("0", "graphics"),
    "display": ("0", "display,utility"),
    "ngx": ("0", "ngx,compute"),
    "everything": ("all", "all"),
}


def plan(sim: SimulatedDriver, devices: str, capabilities: str) -> ContainerEdits:
    env = (f"NVIDIA_VISIBLE_DEVICES={devices}", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    made = gpu_edits(env, {}, False, sim.env)
    assert made is not None
    return made


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layout", ["debian", "rhel"])
def test_plan(name: str, layout: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the nodes of the simulated driver need root")
    sim = make(tmp_path, Options(layout=layout))
    text = rendered(plan(sim, *CASES[name]), sim)
    same_as_golden(f"{name}-{layout}", text)


def test_the_same_plan_from_a_driver_read_for_everything(sim: SimulatedDriver) -> None:
    """A plan depends on the request, not on how much of the driver was read."""
    whole = read_driver(roots_from_environment(sim.env), tuple(ALL.split(",")))
    for devices, capabilities in CASES.values():
        request = read_request(
            (f"NVIDIA_VISIBLE_DEVICES={devices}", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"), {}, False
        )
        assert request is not None
        assert sorted(map(repr, edits(request, whole).mounts)) == sorted(map(repr, plan(sim, devices, capabilities).mounts))
        assert edits(request, whole).device_nodes == plan(sim, devices, capabilities).device_nodes


@pytest.mark.parametrize(
    "device",
    ["1", uuid(1), uuid(1).upper(), uuid(1).lower(), bus_id(1), "00000000:17:00.0", "0:17:0.0", f"1,{uuid(1)},{bus_id(1)}"],
)
def test_every_way_to_name_a_gpu(sim: SimulatedDriver, device: str) -> None:
    assert plan(sim, device, "utility") == plan(sim, "1", "utility")


@pytest.mark.parametrize(
    "device", ["2", "7", "99999999999999999999", uuid(9), uuid(1)[:12], "0000:99:00.0", "All", "gpu0", "-1", "１"]
)
def test_unknown_device(sim: SimulatedDriver, device: str) -> None:
    with pytest.raises(GpuError) as e:
        plan(sim, device, "utility")
    assert str(e.value).startswith(
        f"{device}: unknown device (process.env NVIDIA_VISIBLE_DEVICES): the GPUs of this host are "
    )
    for words in ("0 = " + uuid(0), bus_id(1), "NVIDIA A100-SXM4-40GB"):
        assert words in str(e.value)


def test_unknown_device_among_known_ones(sim: SimulatedDriver) -> None:
    with pytest.raises(GpuError, match="5: unknown device"):
        plan(sim, "0,5", "utility")


def test_hostile_device_names_are_escaped(sim: SimulatedDriver) -> None:
    with pytest.raises(GpuError) as e:
        plan(sim, "\x1b[2J\n", "utility")
    assert "\x1b" not in str(e.value) and "\n" not in str(e.value)


def test_a_gpu_without_uuid(tmp_path: Path) -> None:
    sim = make(tmp_path, Options(gpus=1))
    info = sim.path / "proc/driver/nvidia/gpus" / bus_id(0) / "information"
    info.write_text(info.read_text().replace(uuid(0), "GPU-????????-????-????-????-????????????"))
    assert plan(sim, "0", "utility").device_nodes
    for asked in (uuid(0), "GPU-????????-????-????-????-????????????"):
        with pytest.raises(GpuError, match="run nvidia-smi once"):
            plan(sim, asked, "utility")


def test_requirements_are_checked(tmp_path: Path) -> None:
    sim = make(tmp_path, Options(version="550.163.01"))
    env = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.9")
    with pytest.raises(ConfigError, match=r"requirement error: unsatisfied condition: cuda>=12\.9"):
        gpu_edits(env, {}, False, sim.env)
    assert gpu_edits((*env, "NVIDIA_DISABLE_REQUIRE=1"), {}, False, sim.env)
    assert gpu_edits(("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"), {}, False, sim.env)


def test_no_request_no_driver_needed() -> None:
    env = {"GPURUN_SYSROOT": "/nowhere"}
    for asked in ((), ("A=b",), ("NVIDIA_VISIBLE_DEVICES=void",), ("NVIDIA_VISIBLE_DEVICES=",)):
        assert gpu_edits(asked, {}, False, env) is None


def test_denied_by_policy_needs_no_driver() -> None:
    settings = Settings(Policy(accept_envvar_when_unprivileged=False))
    made = gpu_edits(("NVIDIA_VISIBLE_DEVICES=all",), {}, False, {"GPURUN_SYSROOT": "/nowhere"}, settings)
    assert made is not None and len(made.warnings) == 1
    assert made == ContainerEdits(warnings=made.warnings)
    assert edits(GpuRequest((), denied="no"), None) == ContainerEdits(warnings=("no",))  # type: ignore[arg-type]


def test_params_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    sim = make(tmp_path, Options())
    (sim.path / "proc/driver/nvidia/params").unlink()
    assert "params cannot be read" in plan(sim, "0", "utility").warnings[0]


def test_prefixed_params_are_masked_too(tmp_path: Path) -> None:
    sim = make(tmp_path, Options())
    (sim.path / "proc/driver/nvidia/params").write_text("NVreg_ModifyDeviceFiles: 1\nModifyDeviceFiles: 1\n")
    tree = plan(sim, "0", "utility").proc_trees[0]
    assert tree.files[0].content == b"NVreg_ModifyDeviceFiles: 0\nModifyDeviceFiles: 1\n"


def test_every_edit_has_its_reason(sim: SimulatedDriver) -> None:
    made = plan(sim, "all", "all")
    reasons = [n.reason for n in made.device_nodes] + [m.reason for m in made.mounts] + [x.reason for x in made.links]
    assert all(reasons) and all(t.reason and all(f.reason for f in t.files) for t in made.proc_trees)
