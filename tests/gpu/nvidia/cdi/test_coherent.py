"""CDI files of coherent GPUs and of the others: what the flag enable-coherent-annotations writes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.cdi.files import read_registry, read_spec_file
from gpurun.gpu.nvidia.cdi.coherent import ANNOTATION, by_coherence
from gpurun.gpu.nvidia.cdi.generate import generate
from gpurun.gpu.nvidia.cdi.generated import Generated, GenerateOptions
from gpurun.gpu.nvidia.host.identity import GpuIdentity
from gpurun.gpu.nvidia.host.roots import Roots
from tests.conftest import runtime_path
from tests.nvml import compile_stub
from tests.simdriver import VERSION, Options, SimulatedDriver, bus_id, minor

MakeSim = Callable[[Options], SimulatedDriver]
COHERENT = "enable-coherent-annotations"


def generated(
    sim: SimulatedDriver, monkeypatch: pytest.MonkeyPatch, told: tuple[bool | None, ...], *features: str
) -> Generated:
    identities = tuple([GpuIdentity(bus_id(i), coherent=value) for i, value in enumerate(told)])
    monkeypatch.setattr("gpurun.gpu.nvidia.cdi.generate.ask", lambda _roots: identities)
    return generate(Roots(sysroot=str(sim.path)), GenerateOptions(features=features, strategies=("index",)), sim.env)


def shown(made: Generated) -> dict[str, str]:
    return {d.name: dict(d.annotations).get(ANNOTATION, "") for d in made.spec.devices}


def test_each_gpu_says_what_it_is(make_sim: MakeSim, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = make_sim(Options(gpus=3, nodes=False))
    made = generated(sim, monkeypatch, (True, False, None), COHERENT)
    assert shown(made) == {"0": "true", "1": "false", "2": "", "all": ""}
    assert made.spec.version == "0.6.0" and made.warnings == (), "annotations are of 0.6.0"
    parts = dict(by_coherence(made))
    assert {infix: [d.name for d in spec.devices] for infix, spec in parts.items()} == {
        ".coherent": ["0", "all"], ".noncoherent": ["1", "all"],
    }  # fmt: skip
    for infix, spec in parts.items():
        assert spec.kind == f"nvidia.com/gpu{infix}" and spec.edits == made.spec.edits and spec.version == "0.6.0"
        assert not any(d.annotations for d in spec.devices), "the class says it"
    assert [n.path for n in parts[".coherent"].devices[1].edits.device_nodes] == [f"/dev/nvidia{minor(0, 3)}"]


def test_all_of_a_kind_is_every_gpu_of_it_once(make_sim: MakeSim, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = make_sim(Options(gpus=3, nodes=False, drm=False))
    made = generated(sim, monkeypatch, (True, True, True), COHERENT)
    ((infix, spec),) = by_coherence(made)
    assert infix == ".coherent" and [d.name for d in spec.devices] == ["0", "1", "2", "all"]
    assert sorted(n.path for n in spec.devices[-1].edits.device_nodes) == [f"/dev/nvidia{i}" for i in range(3)]
    ((_, without),) = by_coherence(made, all_device=False)
    assert [d.name for d in without.devices] == ["0", "1", "2"]


def test_mig_devices_are_of_neither_kind(make_sim: MakeSim, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = make_sim(Options(mig=((0, 1, 0),), nodes=False))
    assert shown(generated(sim, monkeypatch, (True, True), COHERENT)) == {"0:0": "", "1": "true", "all": ""}


def test_nothing_of_it_unless_asked_for(make_sim: MakeSim, monkeypatch: pytest.MonkeyPatch) -> None:
    made = generated(make_sim(Options(nodes=False)), monkeypatch, (True, True))
    assert set(shown(made).values()) == {""} and by_coherence(made) == () and made.spec.version == "0.5.0"


def test_without_an_answer_of_nvml(make_sim: MakeSim) -> None:
    """The simulated library answers nothing."""
    sim = make_sim(Options(nodes=False))
    made = generate(Roots(sysroot=str(sim.path)), GenerateOptions(features=(COHERENT,)), sim.env)
    assert by_coherence(made) == () and "no device says whether it is coherent" in made.warnings[0]


def test_the_files(make_sim: MakeSim, tmp_path: Path) -> None:
    """The whole way, with a library that answers as NVML does: the second GPU of the stub is coherent."""
    sim = make_sim(Options(gpus=4, nodes=False))
    library = next(sim.path.rglob(f"libnvidia-ml.so.{VERSION}"))
    library.unlink()
    compile_stub(library, gpus=4)
    words = [runtime_path(), "cdi", "generate", "--feature-flag", COHERENT, "--device-name-strategy=index"]
    done = subprocess.run([*words, "-o", str(tmp_path / "out/nvidia.json")], env=sim.env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "nvidia.coherent.json", "nvidia.json", "nvidia.noncoherent.json",
    ]  # fmt: skip
    whole = read_spec_file(str(tmp_path / "out/nvidia.json"))
    assert [dict(d.annotations).get(ANNOTATION) for d in whole.devices] == ["false", "true", None, "false", None]
    registry = read_registry((str(tmp_path / "out"),))
    assert not registry.errors and {"nvidia.com/gpu.coherent=1", "nvidia.com/gpu.noncoherent=all"} <= set(registry.devices)
    said = subprocess.run(words, env=sim.env, capture_output=True, text=True, check=True).stdout
    assert [line for line in said.splitlines() if line.startswith(("---", "kind"))] == [
        "---", "kind: nvidia.com/gpu", "---", "kind: nvidia.com/gpu.coherent", "---", "kind: nvidia.com/gpu.noncoherent",
    ]  # fmt: skip
