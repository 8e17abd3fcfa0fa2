"""Boards with a GPU of their own: what is given by the lists of a Tegra, and the GPUs of a Thor."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.document import CdiSpec
from gpurun.cdi.write import to_text
from gpurun.commands.cdi_generate import generate_spec
from gpurun.errors import ConfigError, GpuError
from gpurun.gpu.nvidia.cdi.generated import GenerateOptions
from gpurun.gpu.nvidia.host.gpus import has_cards_alone
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.gpu.nvidia.request.settings import Settings
from gpurun.record import replace
from tests.gpu.planning import paths, plan
from tests.nvml import compile_stub
from tests.simdriver import SimulatedDriver, make_tegra, make_thor, make_wsl, uuid


@pytest.fixture(autouse=True)
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("the nodes of the simulated driver need root")


def test_tegra(tmp_path: Path) -> None:
    host = make_tegra(tmp_path)
    made = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")
    assert made == plan(host, Settings(mode="csv"), "NVIDIA_VISIBLE_DEVICES=0")
    assert made.additional_gids == (44,) and "nvidia_icd.json" not in paths(made)
    every = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_JETPACK=csv-mounts=all")
    assert "nvidia_icd.json" in paths(every)
    assert plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=none").device_nodes == ()
    with pytest.raises(GpuError, match=r"^1: unknown device .*: the GPU of this Tegra is 0"):
        plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=1")


def test_tegra_without_lists(tmp_path: Path) -> None:
    host = make_tegra(tmp_path)
    with pytest.raises(GpuError, match=r"listed in devices\.csv, .*/nowhere has none of them"):
        plan(host, Settings(csv_dir="/nowhere"), "NVIDIA_VISIBLE_DEVICES=0")
    (tmp_path / "etc/nv_tegra_release").unlink()
    assert plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")  # /sys tells it as well


@pytest.mark.parametrize("line", ["lib", "lib /x", "bin, /x", "lib, x", "lib, /a/../b", "lib,"])
def test_lines_that_are_none_of_a_list(tmp_path: Path, line: str) -> None:
    host = make_tegra(tmp_path)
    (tmp_path / "etc/nvidia-container-runtime/host-files-for-container.d/l4t.csv").write_text(f"# x\n{line}\n")
    with pytest.raises(ConfigError, match=r"l4t\.csv: line 2: is not one of dev, dir, lib, sym"):
        plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")


def test_patterns_in_the_lists_of_a_tegra(tmp_path: Path) -> None:
    host = make_tegra(tmp_path)
    plain = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")
    lists = tmp_path / "etc/nvidia-container-runtime/host-files-for-container.d"
    (lists / "devices.csv").write_text("dev, /dev/nv*\n")
    directory = next((tmp_path / "usr/lib").glob("*-linux-gnu"))
    shown = f"/{directory.relative_to(tmp_path)}"
    (lists / "drivers.csv").write_text(f"lib, {shown}/tegra/lib*.so*\nsym, {shown}/te[g]ra/libcuda.so.?\n")
    (lists / "l4t.csv").write_text("lib, /nowhere/*.so\n")
    made = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")
    assert [n.path for n in made.device_nodes] == ["/dev/nvhost-ctrl", "/dev/nvmap"]
    assert {"libcuda.so.1.1", "libnvrm_gpu.so"} <= paths(made)
    assert [link.path for link in made.links] == [f"{shown}/tegra/libcuda.so", f"{shown}/tegra/libcuda.so.1"]
    assert {n.path for n in made.device_nodes} == {n.path for n in plain.device_nodes}


@pytest.mark.parametrize(
    ("build", "devices", "path"), [(make_wsl, ["all"], "/dev/dxg"), (make_tegra, ["0", "all"], "/dev/nvmap")]
)
@pytest.mark.parametrize("mode", ["auto", "own"])
def test_cdi_files_of_other_platforms(
    tmp_path: Path, build: Callable[[Path], SimulatedDriver], devices: list[str], path: str, mode: str
) -> None:
    """What the file says is what a request gets, and gpurun reads its own file back."""
    host = build(tmp_path)
    own = "wsl" if build is make_wsl else "csv"
    asked = own if mode == "own" else mode
    spec = generate_spec(asked, Roots(sysroot=str(tmp_path)), GenerateOptions(), host.env).spec
    assert spec == generate_spec(asked, Roots(sysroot=str(tmp_path)), GenerateOptions(), host.env).spec
    assert [device.name for device in spec.devices] == devices
    assert [hook.args[1] for hook in spec.edits.hooks] == ["create-symlinks", "update-ldcache"]
    file = tmp_path / "etc/cdi/x.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(to_text(spec, "yaml"))
    direct = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
    read = plan(host, Settings(), f"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu={devices[0]}")
    assert path in [n.path for n in read.device_nodes] and paths(read) | {"tegra-egl"} >= paths(direct)
    assert {(n.path, n.major, n.minor) for n in read.device_nodes} == {
        (n.path, n.major, n.minor) for n in direct.device_nodes
    }
    assert {link.path for link in read.links} >= {link.path for link in direct.links}
    assert {entry.soname for entry in read.ldcache} >= {entry.soname for entry in direct.ldcache}


def test_lists_named_and_links_left_out(tmp_path: Path) -> None:
    host = make_tegra(tmp_path)
    libs = f"/usr/lib/{next((tmp_path / 'usr/lib').glob('*-linux-gnu')).name}"
    lines = f"dev, /dev/nvmap\nlib, /etc/nv_tegra_release\nsym, {libs}/libcuda.so\nsym, {libs}/tegra-egl/link\n"
    (tmp_path / "mine.csv").write_text(lines)

    def links(*ignored: str) -> list[str]:
        options = GenerateOptions(csv_files=(f"{tmp_path}/mine.csv",), csv_ignored=ignored)
        spec = generate_spec("csv", Roots(sysroot=str(tmp_path)), options, host.env).spec
        assert [n.path for n in spec.devices[0].edits.device_nodes] == ["/dev/nvmap"]
        assert "/etc/nv_tegra_release" in [m.container_path for m in spec.edits.mounts]
        words = [w for h in spec.edits.hooks for w in h.args if "::" in w]
        return sorted(w.rpartition("/")[2] for w in words)

    everything = ["libcuda.so", "libcuda.so", "libcuda.so.1", "link"]
    assert links() == links("*.so", "*", "/dev/nv*", "/etc/nv_tegra_release") == everything
    assert links("**/*.so") == ["link"], "what is beside the library comes with it"
    assert links("**/l*") == [] and links(f"{libs}/*") == ["link"]
    with pytest.raises(ConfigError, match=r"nowhere\.csv: is not there"):
        generate_spec("csv", Roots(sysroot=str(tmp_path)), GenerateOptions(csv_files=("/nowhere.csv",)), host.env)
    (tmp_path / "mine.csv").write_text("lib, /etc/nv_tegra_release\n")
    with pytest.raises(GpuError, match="has none of the device nodes"):
        generate_spec("csv", Roots(sysroot=str(tmp_path)), GenerateOptions(csv_files=(f"{tmp_path}/mine.csv",)), host.env)
    with pytest.raises(GpuError, match="7: unknown device: the only device of this platform is 0"):
        generate_spec("csv", Roots(sysroot=str(tmp_path)), GenerateOptions(devices=("7",)), host.env)


def test_a_link_in_a_list_brings_what_it_leads_to(tmp_path: Path) -> None:
    """Through every link on the way, also where no line names the file; one that leads nowhere is left out."""
    host = make_tegra(tmp_path)
    libs = f"/usr/lib/{next((tmp_path / 'usr/lib').glob('*-linux-gnu')).name}"
    (tmp_path / "usr/lib/dangling").symlink_to("nowhere")
    lists = tmp_path / "etc/nvidia-container-runtime/host-files-for-container.d"
    (lists / "drivers.csv").write_text(f"sym, {libs}/libcuda.so\nsym, /usr/lib/dangling\n")
    (lists / "l4t.csv").unlink()
    made = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")
    assert {(link.path, link.target) for link in made.links} == {
        (f"{libs}/libcuda.so", "tegra/libcuda.so.1"),
        (f"{libs}/tegra/libcuda.so.1", "libcuda.so.1.1"),
        (f"{libs}/tegra/libcuda.so", "libcuda.so.1"),
    }
    assert [m.container_path for m in made.mounts] == ["/etc/nv_tegra_release", f"{libs}/tegra/libcuda.so.1.1"]
    assert {(e.soname, e.path) for e in made.ldcache} == {
        ("libcuda.so.1", f"{libs}/tegra/libcuda.so.1.1"),
        ("libcuda.so", f"{libs}/tegra/libcuda.so"),
    }


# A Tegra with NVML, and a Thor with a graphics card.


def tegra_nvml(host: SimulatedDriver, gpus: int, name: str, mode: str = "well") -> None:
    libs = next((host.path / "usr/lib").glob("*-linux-gnu"))
    compile_stub(libs / "nvidia/libnvidia-ml.so.1", gpus=gpus, name=name, mode=mode)


def compat_words(spec: CdiSpec) -> tuple[str, ...] | None:
    return next((h.args[2:] for h in spec.edits.hooks if h.args[1] == "enable-cuda-compat"), None)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("Orin (nvgpu)", "", ("--host-cuda-version=13.1", "--cuda-compat-container-root=/usr/local/cuda/compat_orin")),
        ("Orin (nvgpu)", "/another", ("--host-cuda-version=13.1", "--cuda-compat-container-root=/another")),
        ("NVIDIA Thor", "/another", ("--host-cuda-version=13.1",)),
    ],
)
def test_newer_cuda_libraries_of_images_for_a_tegra(tmp_path: Path, name: str, given: str, words: tuple[str, ...]) -> None:
    host = make_tegra(tmp_path)
    roots = Roots(sysroot=str(tmp_path))
    assert compat_words(generate_spec("auto", roots, GenerateOptions(), host.env).spec) is None, "no NVML, no version"
    tegra_nvml(host, 1, name)
    spec = generate_spec("auto", roots, GenerateOptions(csv_compat_root=given), host.env).spec
    assert compat_words(spec) == words
    assert [h.args[1] for h in spec.edits.hooks] == ["create-symlinks", "enable-cuda-compat", "update-ldcache"]
    asked = plan(host, Settings(csv_compat_root=given), "NVIDIA_VISIBLE_DEVICES=0").forward_compat
    assert asked is not None and (asked.driver_version, asked.cuda_version) == ("", "13.1")
    assert asked.directory == (words[1].partition("=")[2] if len(words) > 1 else "/usr/local/cuda/compat")
    for settings in (Settings(cuda_compat_mode="disabled"), Settings(jit_disabled_hooks=("enable-cuda-compat",))):
        assert plan(host, settings, "NVIDIA_VISIBLE_DEVICES=0").forward_compat is None
    assert plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DISABLE_CUDA_COMPAT=1").forward_compat is None
    file = tmp_path / "etc/cdi/x.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(to_text(spec, "yaml"))
    read = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0").forward_compat
    assert read is not None and replace(read, reason="") == replace(asked, reason="")


def test_an_nvml_of_a_tegra_that_does_not_answer(tmp_path: Path) -> None:
    host = make_tegra(tmp_path)
    tegra_nvml(host, 1, "Orin (nvgpu)", mode="unloaded")
    made = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")
    assert made.forward_compat is None and made.device_nodes
    assert [w for w in made.warnings if w.startswith("newer CUDA libraries of the image are not used: NVML error")]


BOARD = ["/dev/nvmap"]
CONTROL = ["/dev/nvidia-uvm", "/dev/nvidiactl"]


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("0", ["/dev/nvidia0", "/dev/nvidia2", *CONTROL, *BOARD]),
        ("1", ["/dev/nvidia1", "/dev/nvidia-uvm-tools", *CONTROL, *BOARD]),
        ("all", ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia-uvm-tools", *CONTROL, *BOARD]),
        (uuid(1), ["/dev/nvidia1", "/dev/nvidia-uvm-tools", *CONTROL, *BOARD]),
        ("none", []),
    ],
)
def test_a_thor_with_a_graphics_card(tmp_path: Path, device: str, expected: list[str]) -> None:
    """Two devices: the lists do not tell them apart, what kind of GPU each is does."""
    host = make_thor(tmp_path)
    made = plan(host, Settings(), f"NVIDIA_VISIBLE_DEVICES={device}")
    assert sorted(n.path for n in made.device_nodes) == sorted(expected)
    assert "libcuda.so.1.1" in paths(made) and "nvidia_icd.json" not in paths(made)
    (tree,) = made.proc_trees
    shown = sorted(bind.host_path.rpartition("/")[2] for bind in tree.binds)
    both = ["0000:01:00.0", "0000:03:00.0"]
    assert shown == {"0": both[:1], "1": both[1:], uuid(1): both[1:], "all": both, "none": []}[device]
    with pytest.raises(GpuError, match=r"^2: unknown device"):
        plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=2")


def test_the_cdi_file_of_a_thor(tmp_path: Path) -> None:
    host = make_thor(tmp_path)
    roots = Roots(sysroot=str(tmp_path))

    def devices(**options: Any) -> dict[str, list[str]]:
        spec = generate_spec("auto", roots, GenerateOptions(**options), host.env).spec
        assert [h.args[1] for h in spec.edits.hooks] == ["create-symlinks", "update-ldcache"]
        return {d.name: sorted(n.path for n in d.edits.device_nodes) for d in spec.devices}

    own = sorted(["/dev/nvidia0", "/dev/nvidia2", *CONTROL, *BOARD])
    card = sorted(["/dev/nvidia1", "/dev/nvidia-uvm-tools", *CONTROL, *BOARD])
    found = devices()
    assert found == {"0": own, uuid(0): own, "1": card, uuid(1): card, "all": sorted({*own, *card})}
    assert devices(devices=("1",), strategies=("type-index",), all_device=False) == {"gpu1": card}
    one = sorted(["/dev/nvidia0", "/dev/nvidia1", *CONTROL, *BOARD])
    assert devices(features=("disable-multiple-csv-devices",)) == {"0": one, "all": one}
    with pytest.raises(GpuError, match=r"^5: unknown device"):
        devices(devices=("5",))
    settings = Settings(jit_feature_flags=("disable-multiple-csv-devices",))
    assert sorted(n.path for n in plan(host, settings, "NVIDIA_VISIBLE_DEVICES=0").device_nodes) == one


def test_a_thor_alone_is_one_device(tmp_path: Path) -> None:
    host = make_thor(tmp_path, cards=0)
    made = plan(host, Settings(), "NVIDIA_VISIBLE_DEVICES=0")
    assert {"/dev/nvidia0", "/dev/nvmap"} <= {n.path for n in made.device_nodes}
    assert [bind.host_path.rpartition("/")[2] for bind in made.proc_trees[0].binds] == ["0000:01:00.0"]


def test_a_graphics_card_in_the_place_of_a_thors_gpu(tmp_path: Path) -> None:
    """Its bus id says nothing by itself."""
    host = make_thor(tmp_path, cards=0)
    info = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    assert has_cards_alone(Roots(sysroot=str(tmp_path))) is False
    info.write_text(info.read_text().replace("NVIDIA Thor", "NVIDIA H100"))
    assert has_cards_alone(Roots(sysroot=str(tmp_path))) is True and host
