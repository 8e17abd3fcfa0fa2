"""The generated CDI file: golden text for the simulated host, names, options, MIG, other modes, moving it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpuError, UsageError
from gpurun.hook import cdi_generate
from gpurun.hook.cdi_document import CdiSpec
from gpurun.hook.cdi_files import parse_spec
from gpurun.hook.cdi_generate import GenerateOptions, generate
from gpurun.hook.cdi_modes import generate_mode
from gpurun.hook.cdi_transform import moved, transform_root
from gpurun.hook.cdi_write import to_text
from gpurun.hook.cdi_yaml import read_subset
from gpurun.hook.gpu import Injected, gpu_edits
from gpurun.hook.host import Roots
from gpurun.hook.identity import GpuIdentity, MigIdentity
from gpurun.hook.settings import Settings
from gpurun.oci.config import Device, OciHook
from tests.simdriver import MULTIARCH, Options, SimulatedDriver, bus_id, mig_minor, mig_uuid, minor, uuid

GOLDEN = Path(__file__).parent / "golden/cdi.yaml"
SOURCE = Path(__file__).resolve().parents[2] / "src"
MakeSim = Callable[[Options], SimulatedDriver]


def made(sim: SimulatedDriver, **options: Any) -> CdiSpec:
    return generate(Roots(sysroot=str(sim.path)), GenerateOptions(**options), {}).spec


def names(spec: CdiSpec) -> list[str]:
    return [device.name for device in spec.devices]


def hooks(spec: CdiSpec) -> list[str]:
    return [hook.args[1] for hook in spec.edits.hooks]


def gpurun(sim: SimulatedDriver, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from gpurun.__main__ import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", program, *args], env=sim.env, input=stdin, capture_output=True, text=True)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the golden file has the paths of x86_64")
def test_golden(sim: SimulatedDriver) -> None:
    """What other runtimes are told of the simulated host.  To accept a change: GPURUN_UPDATE_GOLDEN=1 pytest."""
    if not sim.real_nodes:
        pytest.skip("device nodes need root")
    text = to_text(made(sim), "yaml").replace(str(sim.path), "/SYSROOT")
    if os.environ.get("GPURUN_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_twice_the_same_bytes_and_no_pyyaml_to_read_them(sim: SimulatedDriver) -> None:
    spec = made(sim)
    for form in ("yaml", "json"):
        text = to_text(spec, form)
        assert text == to_text(made(sim), form)
        assert parse_spec(text.encode(), f"x.{form}") == spec
    read_subset(to_text(spec, "yaml"))


def test_the_shape_that_other_tools_look_for(sim: SimulatedDriver) -> None:
    spec = made(sim)
    directory = f"/usr/lib/{MULTIARCH[os.uname().machine]}/nvidia/current"
    assert spec.kind == "nvidia.com/gpu" and spec.edits.env == (
        f"NVIDIA_CTK_LIBCUDA_DIR={directory}",
        "NVIDIA_VISIBLE_DEVICES=void",
    )
    assert hooks(spec) == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
        "update-application-profile",
    ]
    assert all(h.stage == "createContainer" and h.env for h in spec.edits.hooks), "an empty environment may be inherited"
    assert [n.path for n in spec.edits.device_nodes] == sorted(n.path for n in spec.edits.device_nodes)
    paths = [m.container_path for m in spec.edits.mounts]
    assert paths == sorted(paths) and f"{directory}/libcuda.so.999.88.77" in paths
    assert all(n.permissions == "rw" for d in spec.devices for n in d.edits.device_nodes)
    whole = next(d for d in spec.devices if d.name == "all")
    every = {n.path for d in spec.devices for n in d.edits.device_nodes}
    assert {n.path for n in whole.edits.device_nodes} == every


@pytest.mark.parametrize(
    ("strategies", "expected"),
    [
        (("index",), ["0", "1", "all"]),
        (("uuid",), [uuid(0), uuid(1), "all"]),
        (("type-index",), ["gpu0", "gpu1", "all"]),
        (("index", "uuid"), ["0", uuid(0), "1", uuid(1), "all"]),
    ],
)
def test_name_strategies(sim: SimulatedDriver, strategies: tuple[str, ...], expected: list[str]) -> None:
    assert names(made(sim, strategies=strategies)) == expected


def test_which_devices(sim: SimulatedDriver) -> None:
    assert names(made(sim, strategies=("index",), all_device=False)) == ["0", "1"]
    one = made(sim, strategies=("index",), devices=("1",))
    assert names(one) == ["1", "all"]
    assert [n.path for n in one.devices[0].edits.device_nodes if "dri" not in n.path] == ["/dev/nvidia0"]
    assert names(made(sim, strategies=("index",), devices=(uuid(1), "1"))) == ["1", "all"]
    with pytest.raises(GpuError, match="7: unknown device"):
        made(sim, devices=("7",))


def test_hooks_can_be_left_out(sim: SimulatedDriver) -> None:
    assert "update-ldcache" not in hooks(made(sim, disabled_hooks=("update-ldcache",)))
    none = made(sim, disabled_hooks=("all",))
    assert not hooks(none) and not any(d.edits.hooks for d in none.devices)
    chmod = made(sim, disabled_hooks=("all",), enabled_hooks=("chmod",))
    assert [h.args[1:] for h in chmod.devices[0].edits.hooks] == [("chmod", "--mode", "755", "--path", "/dev/dri")]


def test_other_options(sim: SimulatedDriver) -> None:
    spec = made(
        sim,
        vendor="v.com",
        cls="x",
        hook=("/opt/nvidia-ctk", "hook"),
        ldconfig_path="/sbin/ldconfig",
        features=("no-additional-gids-for-device-nodes",),
    )
    assert spec.kind == "v.com/x" and not any(d.edits.additional_gids for d in spec.devices)
    ldcache = next(h for h in spec.edits.hooks if "update-ldcache" in h.args)
    assert ldcache.path == "/opt/nvidia-ctk"
    assert ldcache.args[:5] == ("nvidia-ctk", "hook", "update-ldcache", "--ldconfig-path", "/sbin/ldconfig")


@pytest.mark.parametrize(
    "options",
    [
        {"strategies": ("name",)},
        {"vendor": "-x"},
        {"cls": ""},
        {"disabled_hooks": ("x",)},
        {"enabled_hooks": ("all",)},
        {"features": ("x",)},
    ],
)
def test_options_that_are_refused(sim: SimulatedDriver, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        made(sim, **options)


def test_no_gpu(make_sim: MakeSim) -> None:
    with pytest.raises(GpuError, match="no GPU on this host"):
        made(make_sim(Options(gpus=0)))


def test_nodes_that_the_host_lacks_are_written_with_their_numbers(make_sim: MakeSim) -> None:
    sim = make_sim(Options(gpus=1, nodes=False))
    spec = made(sim)
    node = next(n for n in spec.devices[0].edits.device_nodes if n.path == "/dev/nvidia0")
    assert (node.type, node.major, node.minor) == ("c", 195, 0)
    assert parse_spec(to_text(spec, "yaml").encode(), "x.yaml") == spec


def test_no_compatibility_libraries_where_they_could_not_work(sim: SimulatedDriver) -> None:
    """CUDA does not run on GeForce cards with libraries newer than the driver."""
    info = next((sim.path / "proc/driver/nvidia/gpus").iterdir()) / "information"
    text = info.read_text()
    info.write_text("Model: \t\t NVIDIA GeForce RTX 4090\n" + text.partition("\n")[2])
    try:
        assert "enable-cuda-compat" not in hooks(made(sim))
    finally:
        info.write_text(text)


MIG = ((0, 1, 0), (0, 2, 0))


def identities(_: Roots) -> tuple[GpuIdentity, ...]:
    """NVML counts as it likes: here, against the order of the GPU instances."""
    of = {i: [MigIdentity(2 - gi, gi, ci, mig_uuid(i, gi, ci), "1g.5gb") for g, gi, ci in MIG if g == i] for i, _, _ in MIG}
    return tuple([GpuIdentity(bus_id(i), mig=tuple(mig)) for i, mig in of.items()])


def test_mig_devices(make_sim: MakeSim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi_generate, "ask", identities)
    sim = make_sim(Options(gpus=2, mig=MIG))
    found = made(sim, strategies=("index", "uuid", "type-index"), all_device=False)
    first, second = mig_uuid(0, 1, 0), mig_uuid(0, 2, 0)
    assert names(found) == ["0:1", first, "mig0:1", "0:0", second, "mig0:0", "1", uuid(1), "gpu1"]
    nodes = {d.name: {n.path for n in d.edits.device_nodes if "dri" not in n.path} for d in found.devices}
    caps = {i: [f"/dev/nvidia-caps/nvidia-cap{mig_minor(1, i, ci)}" for ci in (None, 0)] for i in (1, 2)}
    assert nodes[first] == {"/dev/nvidia1", *caps[1]} and nodes[second] == {"/dev/nvidia1", *caps[2]}
    assert parse_spec(to_text(found, "yaml").encode(), "x.yaml") == found


def test_mig_devices_that_nobody_can_name(make_sim: MakeSim, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: Roots) -> tuple[GpuIdentity, ...]:
        raise GpuError("NVML does not answer")

    monkeypatch.setattr(cdi_generate, "ask", silent)
    sim = make_sim(Options(gpus=2, mig=MIG))
    found = generate(Roots(sysroot=str(sim.path)), GenerateOptions(), {})
    assert names(found.spec) == ["1", uuid(1), "all"]
    assert [text.partition(":")[0] for text in found.warnings] == [
        "NVML does not answer",
        "MIG device 0 GI 1 CI 0 is left out",
        "MIG device 0 GI 2 CI 0 is left out",
    ]


@pytest.fixture
def extra_nodes(sim: SimulatedDriver, tmp_path: Path) -> Path:
    """A /dev with what has no GPU number."""
    if os.geteuid() != 0:
        pytest.skip("device nodes need root")
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
        ("imex", ["2", "10"], ["/dev/nvidia-caps-imex-channels/channel2", "/dev/nvidia-caps-imex-channels/channel10"]),
    ],
)
def test_other_modes(extra_nodes: Path, mode: str, devices: list[str], nodes: list[str]) -> None:
    spec = generate_mode(mode, str(extra_nodes), GenerateOptions(cls=mode)).spec
    assert names(spec) == devices
    assert [n.path for d in spec.devices for n in d.edits.device_nodes] == nodes
    assert all(n.host_path == f"{extra_nodes}{n.path}" for d in spec.devices for n in d.edits.device_nodes)
    assert ["/etc/cufile.json"] * (mode == "gds") == [m.container_path for d in spec.devices for m in d.edits.mounts]
    assert parse_spec(to_text(spec, "yaml").encode(), "x.yaml") == spec


def test_management(make_sim: MakeSim) -> None:
    """Every node of the driver, its files, and nothing that hides or filters: for those who administer the host."""
    sim = make_sim(Options(gpus=2, mig=((0, 1, 0),), extras=True))
    if not sim.real_nodes:
        pytest.skip("device nodes need root")
    done = gpurun(sim, "cdi", "generate", "--mode", "management")
    assert (done.returncode, done.stderr) == (0, "")
    spec = parse_spec(done.stdout.encode(), "x.yaml")
    assert (spec.kind, names(spec)) == ("management.nvidia.com/gpu", ["all"])
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


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        ("/a/b", "/a", "/x", "/x/b"),
        ("/a", "/a", "/x", "/x"),
        ("/ab", "/a", "/x", "/ab"),
        ("/a/b", "/", "/x", "/x/a/b"),
        ("/a/b", "/a/", "/", "/b"),
        ("/a", "/a", "/", "/"),
        ("b", "/", "/x", "b"),
    ],
)
def test_moved_paths(path: str, old: str, new: str, expected: str) -> None:
    assert moved(path, old, new) == expected


def test_transform_and_back(sim: SimulatedDriver) -> None:
    spec = made(sim)
    root = str(sim.path)
    driver = transform_root(spec, root, "/")
    assert all(not n.host_path for d in driver.devices for n in d.edits.device_nodes), "then both paths are one"
    assert not any(m.host_path.startswith(root) for m in driver.edits.mounts)
    assert transform_root(driver, "/dev", f"{root}/dev").devices == spec.devices
    inside = transform_root(spec, "/usr", "/opt", "container")
    links = next(h for h in inside.edits.hooks if "create-symlinks" in h.args).args
    assert all("::/opt/" in link for link in links if "::" in link)
    assert transform_root(spec, "/a", "/a") is spec
    with pytest.raises(UsageError):
        transform_root(spec, "/a", "/b", "elsewhere")


# The command line.


def test_generate_list_validate(make_sim: MakeSim) -> None:
    sim = make_sim(Options(gpus=1))
    path = sim.path / "etc/cdi/nvidia.yaml"
    done = gpurun(sim, "cdi", "generate", "--output", str(path), "--nvidia-cdi-hook-path", "/usr/bin/nvidia-cdi-hook")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert path.stat().st_mode & 0o777 == 0o644 and [p.name for p in path.parent.iterdir()] == ["nvidia.yaml"]
    assert "path: /usr/bin/nvidia-cdi-hook" in path.read_text()
    done = gpurun(sim, "cdi", "list")
    assert done.stdout.splitlines() == [f"nvidia.com/gpu={n}" for n in ("0", uuid(0), "all")]
    done = gpurun(sim, "cdi", "validate")
    assert (done.returncode, done.stdout) == (0, f"{path}: good, 3 devices\n")
    (sim.path / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  1.2.3  x\n")
    done = gpurun(sim, "cdi", "validate")
    assert done.returncode == 0 and "was written for the NVIDIA driver 999.88.77, this host runs 1.2.3" in done.stderr
    path.write_text("cdiVersion: 0.5.0\nkind: a/b\ndevices: 3\n")
    done = gpurun(sim, "cdi", "validate", str(path))
    assert (done.returncode, done.stderr) == (1, f"gpurun: {path}: devices: must be an array, not a number\n")
    assert gpurun(sim, "cdi", "list").stdout == ""


def test_formats_and_transform_on_the_command_line(sim: SimulatedDriver, tmp_path: Path) -> None:
    done = gpurun(sim, "cdi", "generate", "--format", "json")
    assert done.returncode == 0 and json.loads(done.stdout)["kind"] == "nvidia.com/gpu"
    out = tmp_path / "a/b.json"
    assert gpurun(sim, "cdi", "generate", "--output", str(out)).returncode == 0
    assert json.loads(out.read_text()) == json.loads(done.stdout)
    done = gpurun(sim, "cdi", "transform", "root", "--from", str(sim.path), "--to", "/host", "--input", str(out))
    assert done.returncode == 0 and str(sim.path) not in json.dumps(json.loads(done.stdout)["devices"][0]["containerEdits"]
                                                                    ["deviceNodes"])  # fmt: skip


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("generate", "more"), "no such command"),
        (("other",), "no such command"),
        (("transform", "root"), "--from: is missing"),
        (("generate", "--mode", "other"), "is not done here"),
        (("generate", "--mode", "csv"), "told by devices.csv"),
        (("generate", "--mode", "wsl"), "this is no WSL"),
        (("generate", "--format", "xml"), "neither yaml nor json"),
        (("generate", "--mode", "gdrcopy"), "no GDRCopy device"),
    ],
)
def test_wrong_command_lines(sim: SimulatedDriver, args: tuple[str, ...], words: str) -> None:
    done = gpurun(sim, "cdi", *args, stdin=json.dumps({"cdiVersion": "0.5.0", "kind": "a/b", "devices": [
        {"name": "0", "containerEdits": {"env": ["A=b"]}}]}))  # fmt: skip
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr


def test_the_numa_nodes_of_devices_from_files(make_sim: MakeSim) -> None:
    """Placement near the GPUs does not depend on who looked the devices up: gpurun in the files, or an engine before it."""
    sim = make_sim(Options(gpus=4))
    if not sim.real_nodes:
        pytest.skip("device nodes need root")
    path = sim.path / "etc/cdi/nvidia.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(to_text(made(sim), "yaml"))
    asked = {"0": (0,), "1": (1,), "1,2": (0, 1), "all": (0, 1)}
    for ids, expected in asked.items():
        names = ",".join([f"nvidia.com/gpu={i}" for i in ids.split(",")])
        read = gpu_edits((f"NVIDIA_VISIBLE_DEVICES={names}",), {}, False, sim.env, Settings())
        assert read is not None and tuple(sorted(set(read.numa_nodes))) == expected
    hooks = tuple([OciHook(h.path, h.args, h.env, None) for h in made(sim).edits.hooks])
    nodes = ("/dev/nvidiactl", f"/dev/nvidia{minor(3, 4)}", "/dev/nvidia9", "/dev/nvidia-uvm", "/dev/sda")
    injected = Injected(hooks, devices=tuple([Device(node, "c") for node in nodes]))
    taken = gpu_edits((), {}, False, sim.env, Settings(), injected=injected)
    assert taken is not None and taken.numa_nodes == (1,)
