"""Which GPUs a restored container asks for, and which mounts of a container are gpurun's; the rest needs CRIU
(tests/lifecycle/test_checkpoint_gpu.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpurun.engine.checkpoint.checkpoint_devices import device_mounts
from gpurun.engine.checkpoint.restore_request import map_gpus
from gpurun.engine.checkpoint.saved_devices import SavedDevices
from gpurun.engine.site_config import read_restore
from gpurun.errors import ConfigError, GpurunError
from gpurun.gpu.nvidia.request.restore import RestorePolicy, gpus_policy, read_map
from gpurun.linux.mountinfo import MountEntry
from gpurun.oci.annotations import GPU_RESTORE
from gpurun.oci.config import read_config
from tests.engine.plan.planning import base, plan
from tests.native.bundle import base_config

SAVED = SavedDevices(gpus=((0, "GPU-a"), (1, "GPU-b")))


def devices(value: str, *pairs: str) -> str:
    """NVIDIA_VISIBLE_DEVICES after --gpu-map, which records and text agree on."""
    config = base_config()
    config["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={value}")
    data = json.dumps(config).encode()
    text, made = map_gpus(data, read_config(data), SAVED, read_map(pairs, "--gpu-map"))
    assert read_config(text) == made
    return made.process.env[-1].partition("=")[2]


@pytest.mark.parametrize(
    ("value", "pair", "after"),
    [
        ("0", "0=3", "3"),
        ("0,1", "GPU-b=GPU-c", "0,GPU-c"),
        ("GPU-a", "0=GPU-c", "GPU-c"),
        ("all", "0=2", "2,GPU-b"),
        ("nvidia.com/gpu=1", "1=5", "nvidia.com/gpu=5"),
    ],
)
def test_what_it_asks_for(value: str, pair: str, after: str) -> None:
    assert devices(value, pair) == after


@pytest.mark.parametrize(
    ("value", "pairs", "said"),
    [
        ("0", ("2=1",), "had no GPU 2"),
        ("0", ("1=2",), "does not name GPU-b"),
        ("free:1", ("0=1",), "leave --gpu-map out"),
        ("none", ("0=1",), "names none"),
        ("0,1", ("0=1",), "twice"),
        ("0", ("0=1", "0=2"), "twice"),
    ],
)
def test_refused(value: str, pairs: tuple[str, ...], said: str) -> None:
    with pytest.raises(GpurunError, match=said):
        devices(value, *pairs)


@pytest.mark.parametrize(
    ("annotation", "site", "said"),
    [("", "same", "same"), ("", "free", "free"), ("free", "same", "free"), ("same", "free", "same")],
)
def test_the_annotation_goes_before_the_site(annotation: str, site: str, said: str) -> None:
    annotations = {GPU_RESTORE: annotation} if annotation else {}
    assert gpus_policy(annotations, RestorePolicy(site)) == said


def test_another_word_is_refused_when_the_container_is_made() -> None:
    config = base()
    config["annotations"] = {GPU_RESTORE: "others"}
    with pytest.raises(ConfigError, match="'others': must be one of same, free"):
        plan(config)


def test_the_table_of_the_site(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[restore]\ngpus = "free"\ngpu-map = ["0=1", "GPU-a=GPU-b"]\n')
    assert read_restore(str(path)) == RestorePolicy("free", (("0", "1"), ("GPU-a", "GPU-b")))
    assert read_restore(str(tmp_path / "none")) == RestorePolicy()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('gpus = "any"', "gpus: must be one of same, free"),
        ('gpu-map = "0=1"', "gpu-map: must be an array of strings"),
        ('gpu-map = ["0"]', "gpu-map: 0: must be OLD=NEW"),
        ('gpu-map = ["0=1", "0=2"]', "gpu-map: 0 is given twice"),
        ('gpu = "0"', "gpu: is unknown; known are gpus and gpu-map"),
    ],
)
def test_what_is_wrong_with_the_table(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[restore]\n{line}\n")
    with pytest.raises(ConfigError, match=f"restore.{said}"):
        read_restore(str(path))


def test_a_containers_own_mounts_are_not_taken_for_gpuruns() -> None:
    root = MountEntry("1", "/images/x", "/", "ext4", "8:1")
    library = MountEntry("2", "/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1", "ext4", "8:1")
    bound = MountEntry("3", "/images/x/etc", "/mnt", "ext4", "8:1")
    tmpfs = MountEntry("4", "/", "/scratch", "tmpfs", "0:50")
    table, host = [root, library, bound, tmpfs], [MountEntry("9", "/", "/", "ext4", "8:1")]
    assert device_mounts(table, host, {"/"}, [], may_mount=True) == [library]
    assert device_mounts(table, host, {"/"}, [], may_mount=False) == [library, bound, tmpfs]
