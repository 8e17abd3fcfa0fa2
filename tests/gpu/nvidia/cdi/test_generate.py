"""The generated CDI file: golden text for the simulated host, names, options, MIG, other modes, moving it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.files import parse_spec
from gpurun.cdi.write import to_text
from gpurun.errors import GpuError, UsageError
from gpurun.gpu.nvidia.cdi import generate as cdi_generate
from gpurun.gpu.nvidia.cdi.generate import generate
from gpurun.gpu.nvidia.cdi.generated import GenerateOptions
from gpurun.gpu.nvidia.host.identity import GpuIdentity, MigIdentity
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.gpu.nvidia.request.settings import Settings
from gpurun.gpu.request.injected import Injected
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.oci.config import Device, OciHook
from tests.golden import same_as_golden
from tests.gpu.nvidia.cdi.generating import MakeSim, gpurun, hooks, made, names
from tests.needs_nodes import require_nodes
from tests.simdriver import MULTIARCH, Options, SimulatedDriver, bus_id, mig_minor, mig_uuid, minor, uuid

GOLDEN = Path(__file__).with_name("golden.yaml")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the golden file has the paths of x86_64")
def test_golden(sim: SimulatedDriver) -> None:
    """What other runtimes are told of the simulated host.  To accept a change: UPDATE_GOLDEN=1."""
    require_nodes(sim.real_nodes)
    text = to_text(made(sim), "yaml").replace(str(sim.path), "/SYSROOT")
    same_as_golden(GOLDEN, text)


def test_twice_the_same_bytes(sim: SimulatedDriver) -> None:
    spec = made(sim)
    for form in ("yaml", "json"):
        text = to_text(spec, form)
        assert text == to_text(made(sim), form)
        assert parse_spec(text.encode(), f"x.{form}") == spec


def test_the_shape_that_other_tools_look_for(sim: SimulatedDriver) -> None:
    spec = made(sim)
    plain = f"/usr/lib/{MULTIARCH[os.uname().machine]}"
    assert spec.kind == "nvidia.com/gpu" and spec.edits.env == (
        f"NVIDIA_CTK_LIBCUDA_DIR={plain}/nvidia/current:{plain}",
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
    assert paths == sorted(paths) and f"{plain}/nvidia/current/libcuda.so.999.88.77" in paths
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
        {"enabled_hooks": ("all",)},
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
    assert gpurun(sim, "cdi", "validate", str(path)).stderr == done.stderr, "named or found, it is the same file"
    path.write_text("cdiVersion: 0.5.0\nkind: a/b\ndevices: 3\n")
    done = gpurun(sim, "cdi", "validate", str(path))
    assert (done.returncode, done.stderr) == (1, f"gpurun: {path}: devices: must be an array, not a number\n")
    assert gpurun(sim, "cdi", "list").stdout == ""


def test_nothing_to_list_or_to_validate(make_sim: MakeSim, tmp_path: Path) -> None:
    """Why there is nothing, where was looked, and what to do; still no failure, as in NVIDIA's program."""
    sim = make_sim(Options(gpus=1))
    (sim.path / "etc/cdi").mkdir(parents=True)
    (sim.path / "etc/cdi/x.yml").write_text("")
    for command, words in (("list", "no CDI device"), ("validate", "no CDI file")):
        done = gpurun(sim, "cdi", command)
        assert (done.returncode, done.stdout) == (0, "")
        told = f"{sim.path}/etc/cdi (no .json and no .yaml), {sim.path}/var/run/cdi (no such file or directory)"
        assert f"gpurun: {words}: looked in {told}; `gpurun cdi generate --output=" in done.stderr
    done = gpurun(sim, "cdi", "list", f"--spec-dir={tmp_path},/nowhere")
    assert f"looked in {tmp_path} (no .json and no .yaml), /nowhere (no such" in done.stderr
    (tmp_path / "broken.json").write_text("{}")
    done = gpurun(sim, "cdi", "list", f"--spec-dir={tmp_path}")
    assert "broken.json: cdiVersion: is missing" in done.stderr and f"looked in {tmp_path} (files: 1)" in done.stderr
    assert "no CDI file" not in gpurun(sim, "cdi", "validate", f"--spec-dir={tmp_path}").stderr


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
        (("transform", "root"), "--from is missing"),
        (("generate", "--mode", "other"), "is not supported"),
        (("generate", "--mode", "csv"), "listed in devices.csv"),
        (("generate", "--mode", "wsl"), "this host is not WSL"),
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
    require_nodes(sim.real_nodes)
    path = sim.path / "etc/cdi/nvidia.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(to_text(made(sim), "yaml"))
    asked = {"0": (0,), "1": (1,), "1,2": (0, 1), "all": (0, 1)}
    for ids, expected in asked.items():
        names = ",".join([f"nvidia.com/gpu={i}" for i in ids.split(",")])
        read = gpu_edits(Inquiry((f"NVIDIA_VISIBLE_DEVICES={names}",), {}, False, sim.env, Settings()))
        assert read is not None and tuple(sorted(set(read.numa_nodes))) == expected
    hooks = tuple([OciHook(h.path, h.args, h.env, None) for h in made(sim).edits.hooks])
    numbers = {"ctl": (195, 255), "x": (195, minor(3, 4)), "9": (195, 9), "-uvm": (510, 0), f"{minor(0, 4)}": (1, 3)}
    nodes = tuple([Device(f"/dev/nvidia{name}", "c", *of) for name, of in numbers.items()])
    injected = Injected(hooks, devices=nodes)
    taken = gpu_edits(Inquiry((), {}, False, sim.env, Settings(), injected=injected))
    assert taken is not None and taken.numa_nodes == (1,)
