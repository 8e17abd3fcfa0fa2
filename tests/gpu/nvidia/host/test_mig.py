"""MIG devices: what procfs shows of them, every way to name one, and what a container gets with one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.cdi.edits import ContainerEdits
from gpurun.errors import GpuError
from gpurun.gpu.nvidia.edits.driver import edits
from gpurun.gpu.nvidia.host.driver import read_driver
from gpurun.gpu.nvidia.host.gpus import read_gpus
from gpurun.gpu.nvidia.host.identity import GpuIdentity, MigIdentity
from gpurun.gpu.nvidia.host.mig import read_minors
from gpurun.gpu.nvidia.host.nodes import read_majors
from gpurun.gpu.nvidia.host.roots import roots_from_environment
from gpurun.gpu.nvidia.request.records import GpuRequest
from gpurun.gpu.nvidia.request.selection import find_mig, identify, is_mig, select
from gpurun.gpu.resolve import Inquiry, gpu_edits
from tests.nvml import compile_stub
from tests.simdriver import VERSION, Options, SimulatedDriver, bus_id, make, mig_minor, mig_uuid, minor, uuid

#: GPU 0: one GPU instance with two compute instances and one with one; GPU 1 is whole; GPU 2 has one.
MIG = ((0, 1, 0), (0, 1, 1), (0, 9, 0), (2, 0, 0))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> SimulatedDriver:
    if os.geteuid() != 0:
        pytest.skip("the nodes of the simulated driver need root")
    return make(tmp_path_factory.mktemp("mig"), Options(gpus=3, mig=MIG))


def nvml(profile: str = "1g.5gb") -> tuple[GpuIdentity, ...]:
    """What NVML would say; it counts the devices of GPU 0 in an order of its own and writes long PCI domains."""
    numbers = {(1, 0): 2, (1, 1): 0, (9, 0): 1}
    return tuple(
        GpuIdentity(
            "0000" + bus_id(gpu),
            uuid(gpu),
            mig=tuple(
                MigIdentity(numbers[gi, ci] if g == 0 else 0, gi, ci, mig_uuid(g, gi, ci), profile)
                for g, gi, ci in MIG
                if g == gpu
            ),
        )
        for gpu in range(3)
    )


def plan(host: SimulatedDriver, *devices: str, resolver: object = nvml, capabilities: str = "utility") -> ContainerEdits:
    wanted = tuple(capabilities.split(","))
    driver = read_driver(roots_from_environment(host.env), wanted)
    return edits(GpuRequest(devices, wanted), driver, resolver)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", ["²", "9" * 5000, "-1", str(1 << 20)])
def test_numbers_that_no_driver_writes(tmp_path: Path, number: str) -> None:
    proc = tmp_path / "proc"
    (proc / "driver/nvidia-caps").mkdir(parents=True)
    (proc / "driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
    (proc / "devices").write_text(f"Character devices:\n{number} nvidia-uvm\n195 nvidia\n")
    (proc / "driver/nvidia-caps/mig-minors").write_text(f"config {number}\nmonitor 2\n")
    (proc / "driver/nvidia/gpus/0000:01:00.0/information").write_text(f"Device Minor: {number}\n")
    roots = roots_from_environment({"GPURUN_SYSROOT": str(tmp_path)})
    assert read_majors(roots) == {"nvidia": 195} and read_gpus(roots) == ()
    assert read_minors(roots, "", {}).of == {"monitor": 2}


def nodes(made: ContainerEdits) -> list[str]:
    return [n.path.removeprefix("/dev/") for n in made.device_nodes]


def cap(index: int, gi: int, ci: int | None = None) -> str:
    return f"nvidia-caps/nvidia-cap{mig_minor(minor(index, 3), gi, ci)}"


def test_what_procfs_shows(host: SimulatedDriver) -> None:
    gpus = read_gpus(roots_from_environment(host.env))
    assert [(g.index, m.gi, m.ci) for g in gpus for m in g.mig] == list(MIG)
    first = gpus[0].mig[0]
    assert (first.uuid, first.index) == ("", -1)
    assert first.files == ("capabilities/gpu2/mig/gi1/access", "capabilities/gpu2/mig/gi1/ci0/access")
    assert [(n.major, n.minor, n.mode, n.exists) for n in first.nodes] == [(235, 282, 0o444, True), (235, 283, 0o444, True)]


def test_the_capability_files_alone_tell_the_minors(tmp_path: Path) -> None:
    sim = make(tmp_path, Options(gpus=3, mig=MIG, nodes=False))
    before = read_gpus(roots_from_environment(sim.env))
    (sim.path / "proc/driver/nvidia-caps/mig-minors").unlink()
    assert read_gpus(roots_from_environment(sim.env)) == before
    assert not before[0].mig[0].nodes[0].exists


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (f"MIG-{uuid(0)}/1/1", (0, 1, 1)),
        (f"mig-{uuid(0).lower()}/9/0", (0, 9, 0)),
        (mig_uuid(0, 9, 0), (0, 9, 0)),
        (mig_uuid(2, 0, 0).upper(), (2, 0, 0)),
        ("0:0", (0, 1, 1)),
        ("0:2", (0, 1, 0)),
        ("2:0", (2, 0, 0)),
    ],
)
def test_every_way_to_name_one(host: SimulatedDriver, device: str, expected: tuple[int, int, int]) -> None:
    assert is_mig(device)
    (selected,) = select(GpuRequest((device,)), read_gpus(roots_from_environment(host.env)), nvml)
    assert not selected.whole
    assert [(selected.gpu.index, m.gi, m.ci) for m in selected.mig] == [expected]


@pytest.mark.parametrize("device", ["0", uuid(0), bus_id(0), "all", "0:17:0.0", "07:00", "GPU-0"])
def test_what_is_no_mig_device(device: str) -> None:
    assert is_mig(device) is (device == "07:00")


@pytest.mark.parametrize(
    "device", [mig_uuid(5, 5, 5), f"MIG-{uuid(0)}/1/7", f"MIG-{uuid(0)}/1/99999999999", "0:3", "1:0", "MIG-", "MIG-GPU-/1/0"]
)
def test_unknown_ones(host: SimulatedDriver, device: str) -> None:
    with pytest.raises(GpuError) as e:
        plan(host, device)
    named = "GPU-" if device == "MIG-GPU-/1/0" else device
    assert str(e.value).startswith(f"{named}: unknown device (process.env NVIDIA_VISIBLE_DEVICES): the ")


def test_nvml_is_asked_once_and_only_when_needed(host: SimulatedDriver) -> None:
    asked = []

    def resolver() -> tuple[GpuIdentity, ...]:
        asked.append(1)
        return nvml()

    gpus = read_gpus(roots_from_environment(host.env))
    for devices in (("all",), ("0",), (f"MIG-{uuid(0)}/1/1",), ("2:0",), ("1", "2:0")):
        select(GpuRequest(devices), gpus, resolver)
    assert not asked
    select(GpuRequest((mig_uuid(0, 9, 0), "0:0", mig_uuid(2, 0, 0))), gpus, resolver)
    assert len(asked) == 1


def test_without_nvml_the_error_shows_the_way_round(host: SimulatedDriver) -> None:
    with pytest.raises(GpuError, match=r"MIG-GPU-00000000-5197-4a6f-8c59-0a1b2c3d4e5f/9/0.*NVML was not there"):
        plan(host, mig_uuid(0, 9, 0), resolver=None)
    with pytest.raises(GpuError, match=r"unknown device.*NVML was not there"):
        plan(host, "0:1", resolver=None)


def test_one_device_brings_its_gpu_its_capabilities_and_its_files(host: SimulatedDriver) -> None:
    made = plan(host, f"MIG-{uuid(0)}/1/1")
    assert nodes(made) == ["nvidiactl", f"nvidia{minor(0, 3)}", cap(0, 1), cap(0, 1, 1)]
    caps = [n for n in made.device_nodes if "caps" in n.path]
    assert {(n.file_mode, n.permissions, n.uid, n.gid) for n in caps} == {(0o444, "rw", 0, 0)}
    assert caps[1].reason == "MIG capability of compute instance 1 of GPU 0"
    tree = made.proc_trees[0]
    assert [(b.container_path.removeprefix("/proc/driver/nvidia/"), b.kind) for b in tree.binds] == [
        (f"gpus/{bus_id(0)}", "dir"),
        ("capabilities/gpu2/mig/gi1/access", "file"),
        ("capabilities/gpu2/mig/gi1/ci1/access", "file"),
    ]
    assert all(Path(b.host_path).exists() for b in tree.binds) and not made.warnings


def test_two_devices_of_one_gpu_instance_share_its_capability(host: SimulatedDriver) -> None:
    made = plan(host, "0:0", "0:2", mig_uuid(0, 1, 0))
    assert nodes(made) == ["nvidiactl", f"nvidia{minor(0, 3)}", cap(0, 1), cap(0, 1, 0), cap(0, 1, 1)]
    assert len(made.proc_trees[0].binds) == 4


def test_all_is_every_gpu_and_every_mig_device(host: SimulatedDriver) -> None:
    found = nodes(plan(host, "all"))
    assert found[:4] == ["nvidiactl", "nvidia2", "nvidia1", "nvidia0"]
    assert found[4:] == [cap(0, 1), cap(0, 1, 0), cap(0, 1, 1), cap(0, 9), cap(0, 9, 0), cap(2, 0), cap(2, 0, 0)]


def test_a_divided_gpu_alone_is_told(host: SimulatedDriver) -> None:
    made = plan(host, "0", "1")
    assert nodes(made) == ["nvidiactl", "nvidia2", "nvidia1"]
    assert len(made.warnings) == 1
    assert "GPU 0 is divided" in made.warnings[0] and f"MIG-{uuid(0)}/1/0, MIG-{uuid(0)}/1/1" in made.warnings[0]


def test_mig_devices_get_no_drm_nodes_unless_their_profile_draws(host: SimulatedDriver) -> None:
    assert "dri/card0" not in nodes(plan(host, "0:0", capabilities="graphics"))
    assert "dri/card0" in nodes(plan(host, mig_uuid(0, 1, 0), capabilities="graphics", resolver=lambda: nvml("1g.5gb+gfx")))


def test_a_device_without_capability_nodes(tmp_path: Path) -> None:
    sim = make(tmp_path, Options(gpus=1, mig=((0, 1, 0),), nodes=False))
    devices = sim.path / "proc/devices"
    devices.write_text(devices.read_text().replace("nvidia-caps", "other"))
    assert plan(sim, "0", resolver=None).device_nodes
    with pytest.raises(GpuError, match=r"MIG-GPU-.*/1/0 has no capability nodes"):
        plan(sim, "all", resolver=None)


def test_identities_of_other_devices_are_nobodys(host: SimulatedDriver) -> None:
    gpus = read_gpus(roots_from_environment(host.env))
    other = (
        GpuIdentity("0000:aa:00.0", "GPU-x", mig=(MigIdentity(0, 1, 0, "MIG-x"),)),
        GpuIdentity(bus_id(0), "GPU-y", mig=(MigIdentity(0, 6, 0, "MIG-y"),)),
    )
    assert identify(gpus, other) == gpus
    with pytest.raises(GpuError):
        find_mig("MIG-x", identify(gpus, other))


def test_a_uuid_is_resolved_by_the_drivers_own_nvml(tmp_path: Path) -> None:
    """The whole way, with a library that answers as NVML does: GPU 0 has GI 1 and GI 2 there."""
    sim = make(tmp_path, Options(mig=((0, 1, 0), (0, 2, 0)), nodes=False))
    library = next(sim.path.rglob(f"libnvidia-ml.so.{VERSION}"))
    library.unlink()
    compile_stub(library, mig=True)
    env = ("NVIDIA_VISIBLE_DEVICES=MIG-00000066-5197-5a6f-8c59-0a1b2c3d4e5f", "NVIDIA_DRIVER_CAPABILITIES=utility")
    made = gpu_edits(Inquiry(env, {}, False, sim.env))
    assert made is not None
    assert [n.minor for n in made.device_nodes if "caps" in n.path] == [mig_minor(1, 2), mig_minor(1, 2, 0)]
    compile_stub(library, mig=True, mode="crash")
    with pytest.raises(GpuError, match=r"^MIG-00000066.*: only NVML can say which .*crashed.*<gi>/<ci> needs none"):
        gpu_edits(Inquiry(env, {}, False, sim.env))


def test_a_gpu_that_nothing_has_used_shows_no_uuid_and_nvml_tells_it(tmp_path: Path) -> None:
    sim = make(tmp_path, Options(nodes=False))
    for index in (0, 1):
        info = sim.path / "proc/driver/nvidia/gpus" / bus_id(index) / "information"
        info.write_text(info.read_text().replace(uuid(index), "GPU-????????-????-????-????-????????????"))
    library = next(sim.path.rglob(f"libnvidia-ml.so.{VERSION}"))
    library.unlink()
    compile_stub(library)
    made = gpu_edits(
        Inquiry((f"NVIDIA_VISIBLE_DEVICES={uuid(1)}", "NVIDIA_DRIVER_CAPABILITIES=utility"), {}, False, sim.env)
    )
    assert made is not None and made.device_nodes[1].path == f"/dev/nvidia{minor(1, 2)}"
    with pytest.raises(GpuError, match="GPU-nobody: unknown device"):
        gpu_edits(Inquiry(("NVIDIA_VISIBLE_DEVICES=GPU-nobody",), {}, False, sim.env))
