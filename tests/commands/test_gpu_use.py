"""Who has which GPU: containers by what is in their /dev, processes by what they have open."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpurun.commands.gpu_use import containers_of, holders, state_roots
from tests.conftest import MakeBundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver

NULL = (1, 3)


def test_processes_by_what_they_have_open() -> None:
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        found = {h.pid: h for h in holders((NULL, (1, 250)), ())[NULL]}
        process.kill()
    assert found[process.pid].command == "sleep" and found[process.pid].container == ""


def test_state_roots(tmp_path: Path) -> None:
    assert state_roots("/my/root", True) == ("/my/root",)
    assert state_roots("/run/gpurun", False)[0] == "/run/gpurun"
    assert containers_of((str(tmp_path), str(tmp_path / "none"))) == ()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/state.json").write_text("{}")
    assert containers_of((str(tmp_path),)) == ()


@pytest.mark.native
@pytest.mark.gpurun_only
def test_containers(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    """Two containers, one with GPU 1 and one that claims the host's devices by a link: that one has none."""
    made = bundle().args("sleep", "60")
    made.process["env"].append("NVIDIA_VISIBLE_DEVICES=1")
    hostile = bundle().sh(f"ln -s {host.path}/dev /dev/nvidia-caps; ln -s {host.path}/dev/nvidia0 /dev/nvidia0; sleep 60")
    with_gpu = runtime.create(made, env=ENVIRONMENT | host.env)
    without = runtime.create(hostile, env=ENVIRONMENT | host.env)
    try:
        assert with_gpu.start().rc == 0 and without.start().rc == 0
        link = Path(f"/proc/{without.pid}/root/dev/nvidia0")
        wait_until(link.is_symlink)
        assert link.is_symlink()
        root = str(runtime.root)
        held = containers_of((root,))
        assert [h.id for h in held] == [with_gpu.id]
        listed = subprocess.run(
            [runtime.path, "--root", root, "gpu", "list", "--json"],
            env=ENVIRONMENT | host.env, stdout=subprocess.PIPE, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert [g["containers"] for g in json.loads(listed.stdout)["gpus"]] == [[], [with_gpu.id]]
        using = {h.pid: h.container for h in holders((NULL,), held)[NULL]}
        assert using[with_gpu.pid] == with_gpu.id and set(using.values()) == {with_gpu.id, ""}
    finally:
        for container in (with_gpu, without):
            container.kill("KILL")
            container.wait()
            container.delete()


@pytest.mark.native
@pytest.mark.gpurun_only
def test_containers_with_the_libraries_of_another_driver(
    runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver
) -> None:
    """The driver is replaced under a container that runs: doctor names it, until it is made anew."""
    made = bundle().args("sleep", "60")
    made.process["env"].append("NVIDIA_VISIBLE_DEVICES=1")
    container = runtime.create(made, env=ENVIRONMENT | host.env)
    plain = runtime.start(bundle().args("sleep", "60"))
    assert container.start().rc == 0

    def doctor() -> dict[str, str]:
        done = runtime("gpu", "doctor", "--json", env=ENVIRONMENT | host.env)
        (found,) = [f for f in json.loads(done.out) if f["subject"] == "containers"]
        return {"verdict": str(found["verdict"]), "text": str(found["text"])}

    assert doctor() == {"verdict": "ok", "text": "1 with GPUs, all with the libraries of driver 999.88.77"}
    version = host.path / "proc/driver/nvidia/version"
    version.write_text(version.read_text().replace("999.88.77", "999.99.1"))
    found = doctor()
    assert found["verdict"] == "fail" and f"{container.id} (999.88.77)" in found["text"] and plain.id not in found["text"]
