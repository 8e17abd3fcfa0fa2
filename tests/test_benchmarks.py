"""`make bench`: gpurun is always what is measured, and a goal that was not measured is not reached."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import cases, cdi, memory
from benchmarks.__main__ import chosen_runtimes
from benchmarks.bed import Failed
from benchmarks.report import GOALS, Measured, goals_table, times_table


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A directory with what a build makes."""
    (tmp_path / "build").mkdir()
    for name in ("gpurun-fast", "gpurun"):
        (tmp_path / "build" / name).touch(0o755)
    return tmp_path / "build"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is PATH, with runc alone."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/runc").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def names(found: list[str]) -> list[str]:
    return [os.path.basename(path) for path in found]


def test_what_is_named_comes_beside_gpurun(build: Path, path: Path) -> None:
    assert names(chosen_runtimes([], build)) == ["gpurun-fast", "gpurun", "runc"]
    assert names(chosen_runtimes(["/opt/crun"], build)) == ["gpurun-fast", "gpurun", "crun"]
    assert chosen_runtimes([str(build / "gpurun"), "/old/gpurun"], build)[2:] == ["/old/gpurun"], "each once"


def test_without_gpurun_nothing_is_measured(tmp_path: Path, path: Path) -> None:
    with pytest.raises(SystemExit, match=r"there is no gpurun in .*: `make build`"):
        chosen_runtimes(["/opt/runc"], tmp_path)


def test_a_goal_that_was_not_measured_is_not_reached() -> None:
    """Neither without a peer, nor where gpurun could not do it."""
    nothing = goals_table(Measured("gpurun", {}), {}, 10.0)
    assert nothing.count("| not measured |  | no |") == len(GOALS) + 1 and "yes" not in nothing
    peer = Measured("runc", {label: [1.0] for label in (cases.LIFE, cases.RUN)})
    assert "| yes |" not in goals_table(Measured("gpurun", {}), {"runc": peer}, 10.0)
    ours = Measured("gpurun", {cases.LIFE: [0.25, 0.5, 0.5], cases.RUN: [2.0]})
    some = goals_table(ours, {"runc": peer}, 10.0).splitlines()
    assert f"| {cases.RUN} | runc | 0.65 | 2.00 | 2.00 | no |" in some
    assert f"| {cases.LIFE} | runc | 0.45 | 0.50 | 0.25 | no |" in some, "the median decides, not the best round"


def test_goals_of_processor_time_of_the_launcher_and_of_memory() -> None:
    """Each is compared with its own kind: what was measured by the clock is no processor time."""
    clock = {cases.EXEC: [1.0], cases.LIFE: [9.0]}
    ours = Measured("gpurun", clock, {cases.EXEC: [4.0]}, {memory.PRIVATE: [300.0]})
    peer = Measured("runc", {cases.EXEC: [10.0], cases.LIFE: [10.0]}, {cases.EXEC: [10.0]}, {memory.PRIVATE: [200.0]})
    lines = goals_table(ours, {"runc": peer}, 10.0, launcher=Measured("gpurun", {cases.LIFE: [11.0]})).splitlines()
    assert f"| {cases.EXEC}, processor time | runc | 0.5 | 0.40 | 0.40 | yes |" in lines
    assert f"| {cases.EXEC} | runc | 1 | 0.10 | 0.10 | yes |" in lines
    assert f"| {cases.LIFE}, launcher alone | runc | 1.2 | 1.10 | 1.10 | yes |" in lines
    assert f"| {memory.PRIVATE} | runc | 0.8 | 1.50 | 1.50 | no |" in lines
    assert f"| {memory.CHARGED} | runc | 0.8 | not measured |  | no |" in lines


def test_what_gpurun_could_not_do_is_in_the_table() -> None:
    """A row of peers alone says so: it does not vanish."""
    table = times_table([Measured("gpurun", {}), Measured("runc", {cases.LIFE: [1.0, 3.0, 4.0]})])
    assert f"| {cases.LIFE} |  | 3.0 (1.0) |  |" in table


@pytest.mark.parametrize(
    ("says", "found"), [("NVIDIA CDI Hook CLI version 1.20.0", True), ("NVIDIA CDI Hook (gpurun)", False)]
)
def test_the_peers_hook_is_nvidias(tmp_path: Path, path: Path, says: str, found: bool) -> None:
    """gpurun under the name of that program would be measured against itself."""
    directory = tmp_path / "nvidia"
    directory.mkdir()
    (directory / "crun").touch(0o755)
    hook = directory / "nvidia-cdi-hook"
    hook.write_text(f"#!/bin/sh\necho '{says}'\n")
    hook.chmod(0o755)
    for named in ([str(hook)], [str(directory / "crun")]):
        if found:
            assert cdi.find_hook(named) == str(hook)
        else:
            with pytest.raises(Failed, match="NVIDIA's nvidia-cdi-hook is neither among the peers nor on PATH"):
                cdi.find_hook(named)
    (path / "nvidia-cdi-hook").symlink_to(hook)
    if found:
        assert cdi.find_hook([]) == str(path / "nvidia-cdi-hook")


def test_the_hook_is_no_runtime(build: Path, path: Path) -> None:
    assert names(chosen_runtimes(["/opt/nvidia-cdi-hook", "/opt/crun"], build)) == ["gpurun-fast", "gpurun", "crun"]
    assert names(chosen_runtimes(["/opt/nvidia-cdi-hook"], build)) == ["gpurun-fast", "gpurun", "runc"]


def test_edits_of_a_cdi_file_in_a_config(tmp_path: Path) -> None:
    """As Podman and Docker write them: nodes by number, with a rule each."""
    node = {"path": "/dev/x", "hostPath": "/dev/null", "permissions": "rw", "gid": 44}
    hook = {"hookName": "createContainer", "path": "/h", "args": ["h", "a"], "env": ["A=b"]}
    mount = {"hostPath": "/lib/l", "containerPath": "/l", "options": ["ro", "rbind"]}
    whole = {"env": ["V=1"], "deviceNodes": [node], "hooks": [hook], "mounts": [mount], "additionalGids": [44]}
    device = {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/zero"}]}}
    (tmp_path / "c.json").write_text(json.dumps({"devices": [{"name": "0"}, device], "containerEdits": whole}))
    made = cdi.config_with(tmp_path / "c.json")
    nodes = [(one["path"], one["type"], one["major"], one["minor"], one["gid"]) for one in made["linux"]["devices"]]
    assert nodes == [("/dev/zero", "c", 1, 5, 0), ("/dev/x", "c", 1, 3, 44)]
    rules = [(rule["allow"], rule["access"]) for rule in made["linux"]["resources"]["devices"]]
    assert rules == [(False, "rwm"), (True, "rwm"), (True, "rw")]
    assert made["mounts"][-1] == {"destination": "/l", "source": "/lib/l", "type": "bind", "options": ["ro", "rbind"]}
    assert made["hooks"] == {"createContainer": [{"path": "/h", "args": ["h", "a"], "env": ["A=b"]}]}
    assert made["process"]["env"][-1] == "V=1" and made["process"]["user"]["additionalGids"] == [44]
