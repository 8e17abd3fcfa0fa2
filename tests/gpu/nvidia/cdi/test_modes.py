"""CDI files of what has no GPU number: storage, network, switches, IMEX channels, management."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from gpurun.cdi.files import parse_spec
from gpurun.cdi.write import to_text
from gpurun.errors import GpuError
from gpurun.gpu.nvidia.cdi.generated import GenerateOptions
from gpurun.gpu.nvidia.cdi.modes import generate_mode
from tests.gpu.nvidia.cdi.generating import MakeSim, gpurun, hooks, made, names
from tests.needs_nodes import require_nodes
from tests.simdriver import Options, SimulatedDriver


@pytest.fixture
def extra_nodes(sim: SimulatedDriver, tmp_path: Path) -> Path:
    """A /dev with what has no GPU number."""
    require_nodes()
    names = "nvidia-fs0 nvidia-fs1 infiniband/uverbs0 infiniband/rdma_cm gdrdrv nvidia-nvswitchctl nvidia-nvswitch0"
    for name in [*names.split(), *[f"nvidia-caps-imex-channels/channel{n}" for n in (10, 2)]]:
        node = tmp_path / "dev" / name
        node.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(240, 1))
    (tmp_path / "dev/nvidia-fs-notes").write_text("x")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/cufile.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("mode", "devices", "nodes"),
    [
        ("gds", ["all"], ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]),
        ("mofed", ["all"], ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]),
        ("gdrcopy", ["all"], ["/dev/gdrdrv"]),
        ("nvswitch", ["all"], ["/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl"]),
        ("imex", ["2", "10", "all"], [f"/dev/nvidia-caps-imex-channels/channel{n}" for n in (2, 10, 10, 2)]),
    ],
)
def test_other_modes(extra_nodes: Path, mode: str, devices: list[str], nodes: list[str]) -> None:
    """As NVIDIA's 1.20 writes them: the kind is that of GPUs unless --class and --vendor say another."""
    spec = generate_mode(mode, str(extra_nodes), GenerateOptions()).spec
    assert (names(spec), spec.kind) == (devices, "nvidia.com/gpu")
    assert generate_mode(mode, str(extra_nodes), GenerateOptions(cls=mode, vendor="v.com")).spec.kind == f"v.com/{mode}"
    assert [n.path for d in spec.devices for n in d.edits.device_nodes] == nodes
    assert spec.edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert all(n.host_path == f"{extra_nodes}{n.path}" for d in spec.devices for n in d.edits.device_nodes)
    assert ["/etc/cufile.json"] * (mode == "gds") == [m.container_path for d in spec.devices for m in d.edits.mounts]
    assert parse_spec(to_text(spec, "yaml").encode(), "x.yaml") == spec


@pytest.mark.parametrize("mode", ["gds", "mofed", "gdrcopy", "nvswitch", "imex"])
def test_the_kind_of_other_modes_on_the_command_line(make_sim: MakeSim, mode: str) -> None:
    sim = make_sim(Options(gpus=1, extras=True))
    require_nodes(sim.real_nodes)
    done = gpurun(sim, "cdi", "generate", "--mode", mode)
    assert done.returncode == 0 and "\nkind: nvidia.com/gpu\n" in done.stdout
    (own,) = [word for word in done.stderr.replace(";", " ").split() if word.startswith("--class=")]
    apart = gpurun(sim, "cdi", "generate", "--mode", mode, own)
    assert (apart.stderr, apart.stdout) == ("", done.stdout.replace("/gpu\n", f"/{own.partition('=')[2]}\n"))


def test_which_imex_channels(extra_nodes: Path) -> None:
    def made_for(*devices: str, all_device: bool = False) -> list[str]:
        options = GenerateOptions(devices=devices, all_device=all_device)
        return names(generate_mode("imex", str(extra_nodes), options).spec)

    assert made_for("channel10", "2", "10") == ["10", "2"] and made_for("3", "all") == ["2", "10"]
    assert made_for("10", all_device=True) == ["10", "all"]
    for wrong in ("3", "x", "none", "channel", "GPU-1"):
        with pytest.raises(GpuError, match="this host has no device node for it, only for 2, 10"):
            made_for(wrong)


def test_management(make_sim: MakeSim) -> None:
    """Every node of the driver, its files, and nothing that hides or filters: for those who administer the host."""
    sim = make_sim(Options(gpus=2, mig=((0, 1, 0),), extras=True))
    require_nodes(sim.real_nodes)
    done = gpurun(sim, "cdi", "generate", "--mode", "management")
    assert done.returncode == 0 and "a kind of their own with --vendor=management.nvidia.com" in done.stderr
    spec = parse_spec(done.stdout.encode(), "x.yaml")
    assert (spec.kind, names(spec)) == ("nvidia.com/gpu", ["all"])
    apart = gpurun(sim, "cdi", "generate", "--mode", "management", "--vendor=management.nvidia.com")
    assert apart.stderr == "" and apart.stdout == done.stdout.replace("kind: nvidia.com", "kind: management.nvidia.com")
    nodes = {n.path for d in spec.devices for n in d.edits.device_nodes}
    there = {f"/{p.relative_to(sim.path)}" for p in (sim.path / "dev").rglob("nvidia*") if p.is_char_device()}
    there |= {f"/{p.relative_to(sim.path)}" for p in (sim.path / "dev/nvidia-caps-imex-channels").glob("*")}
    left_out = {p for p in there if "nvidia-fs" in p or "nvswitch" in p or "nvlink" in p}
    assert nodes == there - left_out and left_out
    assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"} <= nodes
    assert any("/nvidia-caps/" in n for n in nodes) and any("imex-channels/" in n for n in nodes)
    assert hooks(spec) and "disable-device-node-modification" not in hooks(spec)
    common = made(sim)
    assert spec.edits.mounts == common.edits.mounts and spec.edits.env == common.edits.env


def test_files_of_configuration_are_looked_for_where_told(make_sim: MakeSim) -> None:
    sim = make_sim(Options(gpus=1))
    (sim.path / "opt/conf/vulkan/icd.d").mkdir(parents=True)
    (sim.path / "opt/conf/vulkan/icd.d/nvidia_icd.json").write_text("{}")
    done = gpurun(sim, "cdi", "generate", "--format", "json", "--config-search-path", "/opt/conf")
    mounts = json.loads(done.stdout)["containerEdits"]["mounts"]
    found = [m["hostPath"] for m in mounts if m["containerPath"].endswith("/vulkan/icd.d/nvidia_icd.json")]
    assert found == [f"{sim.path}/opt/conf/vulkan/icd.d/nvidia_icd.json"]


def test_a_mode_without_devices(tmp_path: Path) -> None:
    with pytest.raises(GpuError, match="no GDRCopy device on this host: there is no /dev/gdrdrv"):
        generate_mode("gdrcopy", str(tmp_path), GenerateOptions())
