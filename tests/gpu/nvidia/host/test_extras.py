"""What containers get beside GPUs: the nodes of other drivers, IMEX channels, MIG administration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.cdi.edits import ContainerEdits, DeviceClass
from gpurun.errors import GpuError
from gpurun.gpu.nvidia.request.settings import Settings
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.hook.device_program import allowing_prefix
from tests.simdriver import Options, SimulatedDriver, bus_id, make

GPU = ("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=utility")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> SimulatedDriver:
    if os.geteuid() != 0:
        pytest.skip("the nodes of the simulated driver need root")
    return make(tmp_path_factory.mktemp("extras"), Options(extras=True, mig=((0, 1, 0), (1, 3, 0))))


def plan(
    host: SimulatedDriver,
    *env: str,
    privileged: bool = False,
    settings: Settings | None = None,
    mounts: tuple[str, ...] = (),
) -> ContainerEdits:
    given = tuple([("/dev/null", f"/var/run/nvidia-container-devices/{m}") for m in mounts])
    made = gpu_edits(Inquiry((*GPU, *env), {}, privileged, host.env, settings, given))
    assert made is not None
    return made


def added(host: SimulatedDriver, made: ContainerEdits) -> tuple[list[str], list[str]]:
    """(nodes, mounts) that are in *made* and not in a plan for the GPU alone."""
    before = plan(host)
    return (
        [n.path.removeprefix("/dev/") for n in made.device_nodes if n not in before.device_nodes],
        [m.container_path for m in made.mounts if m not in before.mounts],
    )


@pytest.mark.parametrize(
    ("variable", "nodes", "mounts"),
    [
        ("NVIDIA_GDS", ["nvidia-fs0", "nvidia-fs1"], ["/etc/cufile.json", "/run/udev"]),
        ("NVIDIA_MOFED", ["infiniband/rdma_cm", "infiniband/uverbs0"], []),
        ("NVIDIA_GDRCOPY", ["gdrdrv"], []),
        ("NVIDIA_NVSWITCH", ["nvidia-nvswitch0", "nvidia-nvswitchctl"], []),
    ],
)
def test_devices_of_other_drivers(host: SimulatedDriver, variable: str, nodes: list[str], mounts: list[str]) -> None:
    made = plan(host, f"{variable}=enabled")
    assert added(host, made) == (nodes, mounts) and made.warnings == plan(host).warnings
    extra = [n for n in made.device_nodes if variable in n.reason]
    assert len(extra) == len(nodes)
    for node in extra:
        stat = os.stat(node.host_path)
        assert (node.major, node.minor) == (os.major(stat.st_rdev), os.minor(stat.st_rdev)) and node.permissions == "rw"


def test_a_host_without_them_is_told_and_the_container_starts(sim: SimulatedDriver) -> None:
    made = gpu_edits(Inquiry((*GPU, "NVIDIA_GDS=enabled", "NVIDIA_MOFED=enabled"), {}, False, sim.env))
    assert made is not None and len(made.warnings) == 2
    assert "this host has no /dev/nvidia-fs*" in made.warnings[0]
    assert "/dev/infiniband/uverbs* and /dev/infiniband/rdma_cm" in made.warnings[1]
    assert not [m for m in made.mounts if "cufile" in m.container_path]


def test_what_only_looks_like_a_node_is_left_out(tmp_path: Path) -> None:
    sim = make(tmp_path, Options(extras=True))
    (sim.path / "dev/gdrdrv").unlink()
    (sim.path / "dev/gdrdrv").symlink_to("/dev/sda")
    (sim.path / "dev/nvidia-fsx").write_text("")
    (sim.path / "dev/nvidia-fs5").write_text("")
    made = plan(sim, "NVIDIA_GDS=enabled", "NVIDIA_GDRCOPY=enabled")
    assert [n.path for n in made.device_nodes if "fs" in n.path or "gdr" in n.path] == ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]
    assert len(made.warnings) == 1 and "/dev/gdrdrv" in made.warnings[0]


def test_groups_of_restricted_nodes(tmp_path: Path) -> None:
    sim = make(tmp_path, Options(extras=True))
    node = sim.path / "dev/infiniband/uverbs0"
    os.chown(node, 0, 117)
    node.chmod(0o660)
    made = plan(sim, "NVIDIA_MOFED=enabled")
    assert made.additional_gids == (117,)
    made = plan(sim, "NVIDIA_MOFED=enabled", settings=Settings(features=("no-additional-gids-for-device-nodes",)))
    assert made.additional_gids == ()


def test_imex_channels(host: SimulatedDriver) -> None:
    made = plan(host, "NVIDIA_IMEX_CHANNELS=7,0,2047")
    nodes = [(n.path, n.major, n.minor) for n in made.device_nodes if "imex" in n.path]
    assert nodes == [(f"/dev/nvidia-caps-imex-channels/channel{n}", 238, n) for n in (0, 7, 2047)]
    settings = Settings(features=("disable-imex-channel-creation",))
    assert plan(host, "NVIDIA_IMEX_CHANNELS=7", settings=settings)
    with pytest.raises(GpuError, match=r"channel2047 is not there, and making it is switched off"):
        plan(host, "NVIDIA_IMEX_CHANNELS=7,2047", settings=settings)


def test_no_imex_channels_on_this_host(sim: SimulatedDriver) -> None:
    with pytest.raises(GpuError, match="IMEX channel 3: this host has no IMEX channels"):
        gpu_edits(Inquiry((*GPU, "NVIDIA_IMEX_CHANNELS=3"), {}, False, sim.env))


@pytest.mark.parametrize("what", ["config", "monitor"])
def test_mig_administration(host: SimulatedDriver, what: str) -> None:
    made = plan(host, f"NVIDIA_MIG_{what.upper()}_DEVICES=all", privileged=True)
    caps = next(m for m in made.mounts if m.container_path == "/dev/nvidia-caps")
    assert not made.warnings
    assert (caps.host_path, caps.kind) == (f"{host.path}/dev/nvidia-caps", "dir") and "nodev" not in caps.options
    assert [(c.type, c.major, c.permissions) for c in made.device_classes] == [("c", 235, "rw")]
    names = [b.container_path.removeprefix("/proc/driver/nvidia/") for b in made.proc_trees[0].binds]
    assert names == [f"gpus/{bus_id(0)}", f"capabilities/mig/{what}", "capabilities/gpu0/mig", "capabilities/gpu1/mig"]
    assert [b.kind for b in made.proc_trees[0].binds] == ["dir", "file", "dir", "dir"]


def test_mig_administration_of_all_gpus_binds_nothing_twice(host: SimulatedDriver) -> None:
    both = ("NVIDIA_MIG_CONFIG_DEVICES=all", "NVIDIA_MIG_MONITOR_DEVICES=all")
    made = gpu_edits(Inquiry(("NVIDIA_VISIBLE_DEVICES=all", *GPU[1:], *both), {}, True, host.env))
    assert made is not None
    names = [b.container_path.removeprefix("/proc/driver/nvidia/") for b in made.proc_trees[0].binds]
    assert names == [
        f"gpus/{bus_id(0)}", f"gpus/{bus_id(1)}",
        "capabilities/mig/config", "capabilities/gpu0/mig", "capabilities/gpu1/mig", "capabilities/mig/monitor",
    ]  # fmt: skip
    assert [m.container_path for m in made.mounts].count("/dev/nvidia-caps") == 1 and len(made.device_classes) == 1


def test_mig_administration_without_nodes_or_without_mig(tmp_path: Path, sim: SimulatedDriver) -> None:
    bare = make(tmp_path, Options(mig=((0, 1, 0),), nodes=False))
    made = plan(bare, "NVIDIA_MIG_CONFIG_DEVICES=all", privileged=True)
    node = next(n for n in made.device_nodes if "caps" in n.path)
    assert (node.path, node.major, node.minor, node.file_mode) == ("/dev/nvidia-caps/nvidia-cap1", 235, 1, 0o400)
    with pytest.raises(GpuError, match="NVIDIA_MIG_CONFIG_DEVICES: this driver has no MIG"):
        plan(sim, "NVIDIA_MIG_CONFIG_DEVICES=all", privileged=True)


def test_a_class_of_devices_in_the_program_of_another_runtime() -> None:
    """Compared with a node's: the test of the minor is what is missing (one instruction of eight bytes)."""
    with_class = allowing_prefix((), (DeviceClass("c", 235),))
    assert len(allowing_prefix(())) == 48 and len(with_class) == 48 + 5 * 8


def test_the_marker_of_volume_mounts_where_they_do_not_count(sim: SimulatedDriver) -> None:
    with pytest.raises(GpuError, match="accept-nvidia-visible-devices-as-volume-mounts is true"):
        gpu_edits(Inquiry(("NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices",), {}, False, sim.env))
