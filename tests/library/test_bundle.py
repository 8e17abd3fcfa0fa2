"""gpurun as a library, without root: bundles, the doctests, and what importing it costs who does not want it."""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpurun
from gpurun.library import bundle, host
from tests.images.making import CONFIG, USERS, layer, layout
from tests.native.bundle import base_config
from tests.simdriver import SimulatedDriver

SOURCE = Path(gpurun.__file__).resolve().parents[1]


@pytest.fixture
def made(tmp_path: Path) -> gpurun.Bundle:
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(base_config()))
    return gpurun.Bundle.load(tmp_path)


@pytest.mark.parametrize("module", [bundle, host])
def test_doctests(module: object) -> None:
    done = doctest.testmod(module, globs={"gpurun": gpurun, "Bundle": gpurun.Bundle, "gpus": gpurun.gpus})  # type: ignore[arg-type]
    assert done.attempted and not done.failed


def test_a_valid_bundle(made: gpurun.Bundle) -> None:
    assert made.validate() == ()
    plan = made.plan("c7")
    assert (plan.id, plan.rootfs) == ("c7", f"{made.path}/rootfs")
    assert plan.init.process.args == ("true",)


def test_the_document_here_counts_until_it_is_saved(made: gpurun.Bundle) -> None:
    made.config["process"]["args"] = ["id", "-u"]
    assert made.plan().init.process.args == ("id", "-u")
    assert gpurun.Bundle.load(made.path).config["process"]["args"] == ["true"]
    made.save()
    assert gpurun.Bundle.load(made.path).config["process"]["args"] == ["id", "-u"]
    assert sorted(os.listdir(made.path)) == ["config.json", "rootfs"]


def test_every_mistake_at_once(made: gpurun.Bundle) -> None:
    made.config["process"]["cwd"] = "relative"
    made.config["hostname"] = 5
    assert {problem.where for problem in made.validate() if problem.fatal} == {"process.cwd", "hostname"}
    with pytest.raises(gpurun.GpurunError, match="hostname"):
        made.plan()


def test_explained_as_data(made: gpurun.Bundle) -> None:
    shown = made.explain("c7")
    assert next(iter(shown)) == f"container c7 from bundle {made.path}"
    assert "args: true" in shown["process"] and all(shown.values())


@pytest.mark.parametrize(
    ("text", "what"), [("{", "is not valid JSON"), ("[]", "is not a JSON object"), (None, "no such file")]
)
def test_what_is_no_bundle(tmp_path: Path, text: str | None, what: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(gpurun.GpurunError, match=what):
        gpurun.Bundle.load(tmp_path)


def test_the_environment_is_what_it_is_told(
    made: gpurun.Bundle, sim: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs of a host that only the process's own environment names are not there; those of *environ* are."""
    for name, value in sim.env.items():
        monkeypatch.setenv(name, value)
    assert gpurun.gpus() == ()
    found = gpurun.gpus(sim.env)
    assert found and [gpu.index for gpu in found] == list(range(len(found)))
    made.config["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=0")
    with pytest.raises(gpurun.GpurunError):
        made.plan()
    nodes = [node.path for node in made.plan(environ=sim.env).init.edits.device_nodes]
    assert found[0].node.path in nodes


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gpurun.nothing  # type: ignore[attr-defined]


def test_names_and_stub_are_the_same() -> None:
    stub = (SOURCE / "gpurun/__init__.pyi").read_text()
    told = {words[-1]: words[1] for line in stub.splitlines() if (words := line.split())[:1] == ["from"]}
    assert list(told) and told == gpurun._LIBRARY  # type: ignore[attr-defined]
    assert all(getattr(gpurun, name).__module__ == module for name, module in told.items())


def test_importing_gpurun_imports_nothing_else() -> None:
    code = "import sys, gpurun; print([name for name in sys.modules if name.startswith('gpurun.')])"
    said = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True
    )
    assert said.stdout == "[]\n"


def test_from_image(tmp_path: Path) -> None:
    config = {**CONFIG, "config": {**CONFIG["config"], "Labels": {"run.oci.keep_original_groups": "1"}}}
    source = layout(tmp_path / "image", layer(*USERS, ("srv", "dir", None)), config=config)
    bundle = gpurun.Bundle.from_image(source, tmp_path / "out", command=["cat", "/etc/passwd"])
    assert bundle.path == str(tmp_path / "out") and (tmp_path / "out/rootfs/etc/passwd").exists()
    assert bundle.config["process"]["args"] == ["/bin/sh", "-c", "cat", "/etc/passwd"]
    assert len(bundle.warnings) == 1 and "run.oci.keep_original_groups" in bundle.warnings[0]
    assert [problem for problem in bundle.validate() if problem.fatal] == []
    with pytest.raises(gpurun.GpurunError, match="is there already"):
        gpurun.Bundle.from_image(source, tmp_path / "out")
    with pytest.raises(TypeError, match="command is one string"):
        gpurun.Bundle.from_image(source, tmp_path / "other", command="cat /etc/passwd")
    assert not (tmp_path / "other").exists()
