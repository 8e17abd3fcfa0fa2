"""Labels of a node, as GPU feature discovery writes them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.kubernetes.config import PluginConfig, Replicated, Sharing
from gpurun.kubernetes.labels import family, labels_of, patch_of, value, write_features
from gpurun.kubernetes.node import NodeGpus
from gpurun.record import replace
from tests.cli.test_main import gpurun
from tests.kubernetes.records import gpu, mig, node, node_of
from tests.simdriver import SimulatedDriver, uuid


def of(whole: NodeGpus, **config: Any) -> dict[str, str]:
    found = labels_of(whole, PluginConfig(**config), "Machine (1)")
    assert all(name.startswith("nvidia.com/") for name in found)
    return {name.removeprefix("nvidia.com/"): text for name, text in found.items()}


def test_whole_gpus() -> None:
    assert of(node_of(2)) == {
        "gpu.machine": "Machine-1", "gpu.count": "2", "gpu.product": "NVIDIA-H100-80GB-HBM3", "gpu.replicas": "1",
        "gpu.sharing-strategy": "none", "gpu.memory": "81920", "gpu.family": "hopper", "gpu.compute.major": "9",
        "gpu.compute.minor": "0", "gpu.mode": "compute", "mig.capable": "true", "mps.capable": "false",
        "cuda.driver.major": "570", "cuda.driver.minor": "86", "cuda.driver.rev": "15",
        "cuda.driver-version.major": "570", "cuda.driver-version.minor": "86", "cuda.driver-version.revision": "15",
        "cuda.driver-version.full": "570.86.15", "cuda.runtime.major": "12", "cuda.runtime.minor": "8",
        "cuda.runtime-version.major": "12", "cuda.runtime-version.minor": "8", "cuda.runtime-version.full": "12.8",
    }  # fmt: skip
    stamped = labels_of(node_of(1), PluginConfig(), "", 17)
    assert stamped["nvidia.com/gfd.timestamp"] == "17" and stamped["nvidia.com/gpu.machine"] == "unknown"


def test_none_without_a_gpu() -> None:
    assert of(NodeGpus("570.86.15")) == {}


def test_shared() -> None:
    found = of(node_of(2), sharing=Sharing("time-slicing", False, (Replicated("nvidia.com/gpu", 4),)))
    assert (found["gpu.replicas"], found["gpu.sharing-strategy"]) == ("4", "time-slicing")
    assert found["gpu.product"] == "NVIDIA-H100-80GB-HBM3-SHARED"
    renamed = Sharing("mps", True, (Replicated("nvidia.com/gpu", 4, "nvidia.com/gpu.shared"),))
    found = of(node_of(2), sharing=renamed)
    assert found["gpu.product"] == "NVIDIA-H100-80GB-HBM3" and found["mps.capable"] == "true"


def test_mig() -> None:
    divided = node(gpu(0, 2, (mig(0, 0), mig(0, 1))), gpu(1, 2, (mig(1, 0),)))
    found = of(divided, mig_strategy="single")
    assert found["gpu.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb" and found["gpu.count"] == "3"
    assert (found["mig.strategy"], found["gpu.memory"], found["gpu.multiprocessors"]) == ("single", "10240", "16")
    mixed = of(node(gpu(0, 2, (mig(0, 0), mig(0, 1, "1g.10gb+me"))), gpu(1, 2)), mig_strategy="mixed")
    assert mixed["mig-1g.10gb.count"] == "1" and mixed["mig-1g.10gb.me.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gbme"
    assert mixed["gpu.count"] == "2" and mixed["gpu.replicas"] == "1"
    wrong = of(node(gpu(0, 2, (mig(0, 0),)), gpu(1, 2)), mig_strategy="single")
    assert (wrong["gpu.product"], wrong["gpu.count"]) == ("NVIDIA-H100-80GB-HBM3-MIG-INVALID", "0")
    none = of(divided)
    assert "mig.strategy" not in none and none["gpu.replicas"] == "0", "nobody shares a GPU that is divided"


def test_a_clique_is_that_of_all_gpus() -> None:
    one, other = f"{uuid(0).removeprefix('GPU-')}.1", f"{uuid(0).removeprefix('GPU-')}.2"
    found = of(node(replace(gpu(0, 2), clique=one), replace(gpu(1, 2), clique=one)))
    assert found["gpu.clique"] == one
    assert of(node(replace(gpu(0, 2), clique=one), gpu(1, 2)))["gpu.clique"] == one
    assert "gpu.clique" not in of(node(replace(gpu(0, 2), clique=one), replace(gpu(1, 2), clique=other)))


def test_virtual_gpus() -> None:
    found = of(node(replace(gpu(0, 2), hypervisor=("550.90.05", "r550_00")), gpu(1, 2)))
    assert {name: text for name, text in found.items() if name.startswith("vgpu.")} == {
        "vgpu.present": "true", "vgpu.host-driver-version": "550.90.05", "vgpu.host-driver-branch": "r550_00",
    }  # fmt: skip
    found = of(node(replace(gpu(0), hypervisor=("", ""))))
    assert found["vgpu.present"] == "true" and "vgpu.host-driver-version" not in found
    gone = {"nvidia.com/vgpu.present": "true"}
    assert patch_of(gone, {}) == {"nvidia.com/vgpu.present": None}


@pytest.mark.parametrize(
    ("compute", "name"),
    [
        ((7, 0), "volta"),
        ((7, 5), "turing"),
        ((8, 6), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((12, 0), "blackwell"),
        ((99, 0), "undefined"),
    ],
)
def test_families(compute: tuple[int, int], name: str) -> None:
    assert family(*compute) == name


def test_values_are_good_labels() -> None:
    assert value("NVIDIA GeForce RTX™ 4090 (24/GB)") == "NVIDIA-GeForce-RTX-4090-24GB"
    assert value("-x" * 60) == "x" + "-x" * 30 and value("é") == ""


def test_a_patch_takes_away_what_is_ours_alone() -> None:
    words = "gpu.present gpu.deploy.driver mig.config device-plugin.config"
    now = {f"nvidia.com/{word}": "x" for word in words.split()} | {"kubernetes.io/os": "linux"}
    now |= {"nvidia.com/gpu.count": "1", "nvidia.com/mig-1g.10gb.count": "7"}
    assert patch_of(now, {"nvidia.com/gpu.count": "2"}) == {
        "nvidia.com/gpu.count": "2",
        "nvidia.com/mig-1g.10gb.count": None,
    }
    assert patch_of({"nvidia.com/gpu.count": "2"}, {"nvidia.com/gpu.count": "2"}) == {}


def test_the_file(tmp_path: Path) -> None:
    path = tmp_path / "features.d/gfd"
    write_features(str(path), {"nvidia.com/b": "2", "nvidia.com/a": "1"})
    assert path.read_text() == "nvidia.com/a=1\nnvidia.com/b=2\n" and [p.name for p in path.parent.iterdir()] == ["gfd"]
    link = tmp_path / "link"
    link.symlink_to("elsewhere")
    with pytest.raises(GpurunError, match="is not a regular file"):
        write_features(str(link), {})


def test_the_command(sim: SimulatedDriver, tmp_path: Path) -> None:
    path = tmp_path / "gfd"
    done = gpurun("kubernetes", "labels", "--oneshot", "--output-file", str(path), env=sim.env)
    assert done.returncode == 0 and "nvidia.com/cuda.driver-version.full=999.88.77\n" in path.read_text()
    assert "nvidia.com/gfd.timestamp=" in path.read_text()
    done = gpurun("kubernetes", "labels", "--oneshot", "--no-timestamp", "-o", "-", env=sim.env)
    assert "nvidia.com/gpu.mode=compute\n" in done.stdout and "timestamp" not in done.stdout
    for words, said in (
        (["--patch-node", "-o", "x"], "--patch-node and --output-file exclude each other"),
        (["--mig-strategy", "some"], "migStrategy: 'some' is unknown"),
        (["--interval", "never"], '--interval: "never" is not a number of seconds'),
        (["--config-file", "/nonexistent"], "/nonexistent: no such file or directory"),
    ):
        done = gpurun("kubernetes", "labels", "--oneshot", *words, env=sim.env)
        assert done.returncode == 1 and said in done.stderr.replace('\\"', '"') and "Traceback" not in done.stderr, (
            done.stderr
        )


def test_the_interval_of_the_configuration(sim: SimulatedDriver, tmp_path: Path) -> None:
    """The file is written by rename, so that a new one is seen by its number; by default that is once a minute."""
    path, config = tmp_path / "gfd", tmp_path / "config.yaml"
    config.write_text("flags: {gfd: {sleepInterval: 200ms}}\n")
    words = [sys.executable, "-m", "gpurun", "kubernetes", "labels", "--config-file", str(config), "-o", str(path)]
    process = subprocess.Popen(words, env=os.environ | sim.env | {"PYTHONPATH": "src"}, stderr=subprocess.PIPE, text=True)
    try:
        seen: set[tuple[int, int]] = set()
        deadline = time.monotonic() + 40
        while len(seen) < 3:
            assert time.monotonic() < deadline and process.poll() is None, seen
            with contextlib.suppress(FileNotFoundError):
                seen.add((path.stat().st_ino, path.stat().st_mtime_ns))
            time.sleep(0.02)
    finally:
        process.terminate()
        assert "Traceback" not in process.communicate(timeout=60)[1]
