"""Request x driver → edits, against plans written down in ``golden/`` (``UPDATE_GOLDEN=1`` writes them anew)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpurun.cdi.edits import ContainerEdits
from gpurun.errors import ConfigError, GpuError
from gpurun.gpu.nvidia.edits.driver import edits
from gpurun.gpu.nvidia.edits.proc_files import application_profile
from gpurun.gpu.nvidia.host.driver import read_driver
from gpurun.gpu.nvidia.host.roots import roots_from_environment
from gpurun.gpu.nvidia.request.environment import read_request
from gpurun.gpu.nvidia.request.records import GpuRequest, Policy
from gpurun.gpu.nvidia.request.settings import Settings
from gpurun.gpu.resolve import Inquiry, gpu_edits
from tests.gpu.rendering import rendered, same_plan
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
    made = gpu_edits(Inquiry(env, {}, False, sim.env))
    assert made is not None
    return made


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layout", ["debian", "rhel"])
def test_plan(name: str, layout: str, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the nodes of the simulated driver need root")
    sim = make(tmp_path, Options(layout=layout))
    text = rendered(plan(sim, *CASES[name]), sim)
    same_plan(f"{name}-{layout}", text)


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
    [
        "1",
        "nvidia:1",
        uuid(1),
        uuid(1).upper(),
        uuid(1).lower(),
        bus_id(1),
        "00000000:17:00.0",
        "0:17:0.0",
        f"1,{uuid(1)},{bus_id(1)}",
    ],
)
def test_every_way_to_name_a_gpu(sim: SimulatedDriver, device: str) -> None:
    assert plan(sim, device, "utility") == plan(sim, "1", "utility")


@pytest.mark.parametrize(
    "device",
    [
        "2",
        "7",
        "99999999999999999999",
        uuid(9),
        uuid(1)[:12],
        "0000:99:00.0",
        "All",
        "gpu0",
        "-1",
        "１",
        "nvidia:",
        "nvidia:１",
    ],
)
def test_unknown_device(sim: SimulatedDriver, device: str) -> None:
    with pytest.raises(GpuError) as e:
        plan(sim, device, "utility")
    assert str(e.value).startswith(
        f"{device}: unknown device (process.env NVIDIA_VISIBLE_DEVICES): the GPUs of this host are "
    )
    names = [uuid(i) if device.startswith("GPU-") else bus_id(i) for i in range(2)]
    listed = f"0 = {names[0]} (NVIDIA A100-SXM4-40GB); 1 = {names[1]} (NVIDIA H100 80GB HBM3)"
    assert listed in str(e.value)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("al", "did you mean all?"),
        ("All", "did you mean all?"),
        ("'all'", "did you mean all?"),
        ("nones", "did you mean none?"),
        ("viod", ""),
        ("voyd", "did you mean void?"),
        ("a", ""),
        ("0 1", "separate devices by commas: 0,1"),
        ("0;1", "separate devices by commas: 0,1"),
        (f"0 {uuid(1)} 9", ""),
        ("0-1", "there are no ranges: write 0,1"),
        ("0-3", "there are no ranges: write 0,1,2,3"),
        ("3-0", ""),
        ("0-9999", ""),
        ("gpu1", "did you mean 1?"),
        ("gpu7", ""),
        (uuid(1)[:12], f"did you mean {uuid(1)}? UUIDs are not abbreviated"),
        ("GPU-", ""),
        ("7", ""),
        ("x" * 300, ""),
    ],
)
def test_what_may_have_been_meant(sim: SimulatedDriver, device: str, words: str) -> None:
    with pytest.raises(GpuError) as e:
        plan(sim, device, "utility")
    assert str(e.value).endswith(f" ({words})") if words else str(e.value).endswith("HBM3)"), str(e.value)


def test_mig_devices_of_a_host_that_has_none(sim: SimulatedDriver) -> None:
    for device in ("0:0", "MIG-" + uuid(0)[4:], f"MIG-{uuid(0)}/1/0"):
        with pytest.raises(GpuError, match=f"^{device}: unknown device .*: this host has no MIG devices: its GPUs are 0 = "):
            plan(sim, device, "utility")


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
        gpu_edits(Inquiry(env, {}, False, sim.env))
    assert gpu_edits(Inquiry((*env, "NVIDIA_DISABLE_REQUIRE=1"), {}, False, sim.env))
    assert gpu_edits(Inquiry(("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_REQUIRE_CUDA=cuda>=12.4"), {}, False, sim.env))


def test_no_request_no_driver_needed() -> None:
    env = {"GPURUN_SYSROOT": "/nowhere"}
    for asked in ((), ("A=b",), ("NVIDIA_VISIBLE_DEVICES=void",), ("NVIDIA_VISIBLE_DEVICES=",)):
        assert gpu_edits(Inquiry(asked, {}, False, env)) is None


def test_denied_by_policy_needs_no_driver() -> None:
    settings = Settings(Policy(accept_envvar_when_unprivileged=False))
    made = gpu_edits(Inquiry(("NVIDIA_VISIBLE_DEVICES=all",), {}, False, {"GPURUN_SYSROOT": "/nowhere"}, settings))
    assert made is not None and len(made.warnings) == 1
    assert made == ContainerEdits(warnings=made.warnings)
    assert edits(GpuRequest((), denied="no"), None) == ContainerEdits(warnings=("no",))  # type: ignore[arg-type]


def test_params_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    sim = make(tmp_path, Options())
    (sim.path / "proc/driver/nvidia/params").unlink()
    assert "params cannot be read" in plan(sim, "0", "utility").warnings[0]


@pytest.mark.parametrize(
    ("host", "seen"),
    [
        ("ModifyDeviceFiles: 1\n", "ModifyDeviceFiles: 0\n"),
        ("ModifyDeviceFiles: 0", "ModifyDeviceFiles: 0"),
        ("A: 1\nModifyDeviceFiles: 1\n  other: content\n", "A: 1\nModifyDeviceFiles: 0\n  other: content\n"),
        ("NVreg_ModifyDeviceFiles: 1\nModifyDeviceFiles: 1\n", "NVreg_ModifyDeviceFiles: 0\nModifyDeviceFiles: 0\n"),
        ("  ModifyDeviceFiles:\t1  \n", "  ModifyDeviceFiles:\t0\n"),
        ("ModifyDeviceFiles: 11\n", "ModifyDeviceFiles: 0\n"),
        ("# Some other content\n\nModify: 1\nModifyDeviceFilesToo: 1\n", None),
        ("", None),
    ],
)
def test_params_say_that_nobody_makes_nodes(tmp_path: Path, host: str, seen: str | None) -> None:
    """Whatever number is there: the driver's tools take any but 0 for yes."""
    sim = make(tmp_path, Options())
    (sim.path / "proc/driver/nvidia/params").write_text(host)
    tree = plan(sim, "0", "utility").proc_trees[0]
    assert tree.files[0].content.decode() == (host if seen is None else seen)


def test_the_mask_of_a_profile() -> None:
    """By minors; those that a mask of 64 bits has no place for are not in it, as in NVIDIA's."""
    asked = {
        (): "0x0",
        (0,): "0x1",
        (8,): "0x100",
        (0, 15): "0x8001",
        (1, 0, 1): "0x3",
        (63,): "0x8000000000000000",
        (64,): "0x0",
    }
    for minors, mask in asked.items():
        (file,) = application_profile(minors).files
        said = json.loads(file.content.replace(mask.encode() + b"]", b'"' + mask.encode() + b'"]'))
        assert said["profiles"] == [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", mask]}]
        assert said["rules"] == [{"pattern": [], "profile": "_container_"}]


def test_every_edit_has_its_reason(sim: SimulatedDriver) -> None:
    made = plan(sim, "all", "all")
    reasons = [n.reason for n in made.device_nodes] + [m.reason for m in made.mounts] + [x.reason for x in made.links]
    assert all(reasons) and all(t.reason and all(f.reason for f in t.files) for t in made.proc_trees)
