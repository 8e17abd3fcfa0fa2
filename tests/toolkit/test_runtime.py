"""``nvidia-container-runtime``: gpurun under the site's settings; the names with a mode force it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpurun.gpu.nvidia.cdi.known_hooks import INTERFACE_VERSION
from tests.native.bundle import base_config
from tests.simdriver import SimulatedDriver

from .conftest import PROGRAM, Call


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """A site whose runtime logs to a file."""
    (tmp_path / "config.toml").write_text(f'[nvidia-container-runtime]\ndebug = "{tmp_path}/runtime.log"\n')
    return {"NVIDIA_CTK_CONFIG_FILE_PATH": str(tmp_path / "config.toml")}


def bundle(tmp_path: Path, devices: str) -> str:
    config = base_config()
    config["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={devices}")
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "rootfs/bin").mkdir(parents=True, exist_ok=True)
    (tmp_path / "rootfs/bin/true").touch(0o755)
    return str(tmp_path)


def test_the_log_is_kept_twice(call: Call, tmp_path: Path, site: dict[str, str]) -> None:
    words = ("--root", tmp_path / "none", "--log", tmp_path / "log", "--log-format=json", "state", "x")
    done = call("nvidia-container-runtime", *words, env=site)
    assert (done.returncode, done.stderr) == (1, "container does not exist\n")
    assert json.loads((tmp_path / "log").read_text())["msg"] == "container does not exist"
    assert (tmp_path / "runtime.log").read_text().endswith('level=error msg="container does not exist"\n')
    (tmp_path / "runtime.log").unlink()
    call("nvidia-container-runtime", "--version", env=site)
    assert (tmp_path / "runtime.log").read_text() == ""


def test_a_log_that_cannot_be_opened_stops_nothing(call: Call, tmp_path: Path, site: dict[str, str]) -> None:
    (tmp_path / "runtime.log").mkdir()
    done = call("nvidia-container-runtime", "--root", tmp_path / "none", "state", "x", env=site)
    assert done.returncode == 1 and "cannot open the log file" in done.stderr and "container does not exist" in done.stderr


def test_broken_settings_stop_only_what_needs_them(call: Call, tmp_path: Path, site: dict[str, str]) -> None:
    (tmp_path / "config.toml").write_text("broken")
    done = call("nvidia-container-runtime", "--root", tmp_path / "none", "state", "x", env=site)
    assert done.returncode == 1 and "container does not exist" in done.stderr
    done = call("nvidia-container-runtime", "explain", bundle(tmp_path, "0"), env=site)
    assert done.returncode == 1 and "config.toml" in done.stderr


@pytest.mark.parametrize(
    ("name", "devices", "words"),
    [
        ("nvidia-container-runtime", "0", ""),
        ("nvidia-container-runtime.legacy", "0", ""),
        ("nvidia-container-runtime.cdi", "0", "nvidia.com/gpu=0"),
        ("nvidia-container-runtime", "runtime.nvidia.com/gpu=0", ""),
        ("nvidia-container-runtime.legacy", "nvidia.com/gpu=0", "does not support CDI devices"),
    ],
)
def test_a_name_forces_a_mode(
    call: Call, host: SimulatedDriver, tmp_path: Path, name: str, devices: str, words: str
) -> None:
    """In mode cdi a plain index is looked up in CDI files, and here are none; in mode legacy CDI names are refused."""
    done = call(name, "explain", bundle(tmp_path, devices))
    if words:
        assert done.returncode == 1 and words in done.stderr
    else:
        assert done.returncode == 0 and "/dev/nvidia" in done.stdout, done.stderr


def test_the_environment_can_force_it_too(call: Call, tmp_path: Path) -> None:
    done = call("nvidia-container-runtime", "explain", bundle(tmp_path, "0"), env={"GPURUN_MODE": "nonsense"})
    assert done.returncode == 1 and "GPURUN_MODE" in done.stderr


def test_the_version_begins_as_nvidias(call: Call) -> None:
    """Two blocks, as when NVIDIA's runtime asks the one below it: scripts look for the first line, engines for the last."""
    own = call("nvidia-container-runtime", "--version")
    first, _, rest = own.stdout.partition("\n\n")
    assert (own.returncode, own.stderr) == (0, "")
    assert first.splitlines()[0] == f"NVIDIA Container Runtime version {INTERFACE_VERSION}"
    assert [line.partition(": ")[0] for line in first.splitlines()[1:]] == ["spec"]
    assert rest.startswith("gpurun version ") and "\nspec: " in rest
    assert call("nvidia-container-runtime.cdi", "-v").stdout == own.stdout
    plain = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert plain.stdout == rest
