"""Hosts whose device nodes (or nvidia-uvm itself) are not there: nvidia-modprobe is asked, or the container gets its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpurun.cdi.edits import ContainerEdits
from gpurun.errors import ConfigError, GpuError
from gpurun.gpu.nvidia.host import modprobe
from gpurun.gpu.nvidia.host.roots import Roots, roots_from_environment
from gpurun.gpu.nvidia.request.settings import Settings
from gpurun.gpu.resolve import Inquiry, gpu_edits, no_check
from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.native.waiting import wait_until
from tests.simdriver import Options, SimulatedDriver, make

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="nodes are made by root")
ASKING = ("NVIDIA_VISIBLE_DEVICES=all",)

#: A nvidia-modprobe that notes how it was called, and makes the nodes.
SCRIPT = """#!/bin/sh
cd "${0%/usr/bin/nvidia-modprobe}" || exit 1
echo "$@ $(env | sort | tr '\\n' ' ')" >>calls
case "$*" in
*-u*) mknod -m 666 dev/nvidia-uvm c 510 0; mknod -m 666 dev/nvidia-uvm-tools c 510 1
   grep -q uvm proc/devices || sed -i 's/^  1 mem$/  1 mem\\n510 nvidia-uvm/' proc/devices;;
-c=*) n=${1#-c=}; mknod -m 666 dev/nvidia$n c 195 $n; [ -e dev/nvidiactl ] || mknod -m 666 dev/nvidiactl c 195 255;;
esac
"""


@pytest.fixture
def host(place: Path) -> Iterator[Callable[..., SimulatedDriver]]:
    directory = Path(tempfile.mkdtemp(dir=place))
    directory.chmod(0o755)

    def build(script: str = "", **options: object) -> SimulatedDriver:
        sim = make(directory / "host", Options(**{"nodes": False} | options))  # type: ignore[arg-type]
        (sim.path / "dev").mkdir(exist_ok=True)
        if script:
            program = sim.path / "usr/bin/nvidia-modprobe"
            program.write_text(script)
            program.chmod(0o755)
        return sim

    yield build
    shutil.rmtree(directory)


def calls(sim: SimulatedDriver) -> list[str]:
    path = sim.path / "calls"
    return path.read_text().splitlines() if path.exists() else []


@needs_root
def test_missing_nodes_are_made_by_the_program(host: Callable[..., SimulatedDriver]) -> None:
    sim = host(SCRIPT)
    made = gpu_edits(Inquiry(ASKING, {}, False, sim.env, prepare=no_check))
    assert made is not None
    assert sorted(os.listdir(sim.path / "dev")) == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]
    said = calls(sim)
    assert [line.split(" PATH=")[0].rpartition(" PWD=")[0] or line.split(" ")[0] for line in said]
    assert [line.split()[0] for line in said] == ["-c=0", "-c=1", "-u"]
    for line in said:
        names = {word.partition("=")[0] for word in line.split() if "=" in word and not word.startswith("-")}
        assert names <= {"PATH", "PWD", "_", "SHLVL", "OLDPWD"}, "our own environment is not the program's"


@needs_root
def test_a_module_that_is_not_loaded(host: Callable[..., SimulatedDriver]) -> None:
    sim = host(SCRIPT, nodes=True, no_uvm=True)
    with pytest.raises(GpuError, match="nvidia-uvm not loaded"):
        gpu_edits(Inquiry(ASKING, {}, False, sim.env))
    assert calls(sim) == [], "explain changes nothing"
    made = gpu_edits(Inquiry(ASKING, {}, False, sim.env, prepare=no_check))
    assert made is not None and "/dev/nvidia-uvm" in [n.path for n in made.device_nodes]


def test_a_host_that_has_all_is_asked_nothing(host: Callable[..., SimulatedDriver]) -> None:
    sim = host(SCRIPT, nodes=True)
    gpu_edits(Inquiry(ASKING, {}, False, sim.env, prepare=no_check))
    assert calls(sim) == []


@needs_root
@pytest.mark.parametrize("why", ["settings", "no program", "not root's", "writable by others", "a link to nothing"])
def test_when_the_program_is_not_run(host: Callable[..., SimulatedDriver], why: str) -> None:
    sim = host("" if why == "no program" else SCRIPT)
    program = sim.path / "usr/bin/nvidia-modprobe"
    if why == "not root's":
        os.chown(program, 1000, 0)
    elif why == "writable by others":
        program.chmod(0o777)
    elif why == "a link to nothing":
        program.unlink()
        program.symlink_to("nowhere")
    made = gpu_edits(Inquiry(ASKING, {}, False, sim.env, Settings(load_kmods=why != "settings"), prepare=no_check))
    assert calls(sim) == [] and made is not None
    assert {n.path for n in made.device_nodes} >= {"/dev/nvidia0", "/dev/nvidia-uvm", "/dev/nvidiactl"}


@needs_root
@pytest.mark.parametrize("loaded", [True, False])
def test_what_is_refused_is_refused_before_the_program_runs(host: Callable[..., SimulatedDriver], loaded: bool) -> None:
    sim = host(SCRIPT, no_uvm=not loaded)
    seen: list[ContainerEdits] = []

    def refuse(edits: ContainerEdits) -> None:
        seen.append(edits)
        raise ConfigError("hostname", "is bad")

    with pytest.raises(ConfigError, match="is bad"):
        gpu_edits(Inquiry(ASKING, {}, False, sim.env, prepare=refuse))
    assert calls(sim) == []
    paths = [node.path for node in seen[0].device_nodes]
    assert "/dev/nvidiactl" in paths and ("/dev/nvidia1" in paths) is loaded, "what is known goes into the plan"


@needs_root
def test_a_gpu_that_is_not_there_is_refused_before_the_program_runs(host: Callable[..., SimulatedDriver]) -> None:
    sim = host(SCRIPT)
    with pytest.raises(GpuError, match="7"):
        gpu_edits(Inquiry(("NVIDIA_VISIBLE_DEVICES=7",), {}, False, sim.env, prepare=no_check))
    assert calls(sim) == []


@needs_root
def test_what_only_nvml_knows_does_not_keep_the_program_from_running(host: Callable[..., SimulatedDriver]) -> None:
    # NVML itself may need the nodes that are missing.
    sim = host(SCRIPT, mig=((0, 1, 0),))
    with pytest.raises(GpuError):
        gpu_edits(
            Inquiry(
                ("NVIDIA_VISIBLE_DEVICES=MIG-11111111-2222-3333-4444-555555555555",), {}, False, sim.env, prepare=no_check
            )
        )
    assert calls(sim)


@needs_root
def test_a_program_that_hangs_is_ended(host: Callable[..., SimulatedDriver], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modprobe, "TIMEOUT_S", 0.3)
    sim = host('#!/bin/sh\necho $$ >>"${0%/usr/bin/nvidia-modprobe}/calls"\nsleep 1000 & wait\n')
    assert modprobe.make_present(roots_from_environment(sim.env), ("compute",))
    pids = [int(line) for line in calls(sim)]
    assert pids
    wait_until(lambda: not any(str(pid) in os.listdir("/proc") for pid in pids))


@needs_root
def test_the_program_of_a_driver_container_runs_in_its_root(tmp_path: Path, busybox: Path) -> None:
    """With a driver root that is not the host's, the program sees that root as its own, as the driver's container does."""
    if os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("this host has a driver: nothing would be missing")
    root = tmp_path / "driver"
    for directory in ("usr/bin", "bin", "dev"):
        (root / directory).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/sh")
    program = root / "usr/bin/nvidia-modprobe"
    program.write_text('#!/bin/sh\necho "$0 $* in $PWD: $(echo /*)" >>/calls\n')
    program.chmod(0o755)
    assert modprobe.make_present(Roots(driver_root=str(root)), ("compute",))
    said = (root / "calls").read_text().splitlines()
    assert [line.partition(" in ")[0] for line in said] == [
        "/usr/bin/nvidia-modprobe -c=0",
        "/usr/bin/nvidia-modprobe -u -c=0",
    ]
    assert all(line.partition(" in ")[2] in ("/: /bin /dev /usr", "/: /bin /calls /dev /usr") for line in said)
    shutil.rmtree(root)
    with pytest.raises(GpuError, match=r"driver root .* does not exist"):
        modprobe.make_present(Roots(driver_root=str(root)), ("compute",))


@pytest.fixture
def gpu(bundle: MakeBundle) -> Bundle:
    made = bundle()
    made.process["env"] += ASKING
    return made.capabilities("CAP_MKNOD", "CAP_DAC_OVERRIDE")


NODES = "/dev/nvidia-uvm /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl"
LOOK = f"stat -c '%n %t:%T %a %u' {NODES}; for n in {NODES}; do (: <>$n) 2>&1; done; true"


@pytest.mark.native
@pytest.mark.gpurun_only
@pytest.mark.parametrize("what", ["hostname", "namespace", "rootfs", "console"])
def test_a_rejected_config_has_touched_nothing_of_the_host(
    runtime: Runtime, gpu: Bundle, host: Callable[..., SimulatedDriver], what: str
) -> None:
    sim = host(SCRIPT)
    if what == "hostname":
        gpu.config["hostname"] = "x"
        gpu.without_namespace("uts")
        said = "unable to set hostname without a private UTS namespace"
    elif what == "namespace":
        for key in ("maskedPaths", "readonlyPaths"):
            gpu.linux[key] = []
        gpu.without_namespace("mount")
        said = "a container with GPUs needs a mount namespace"
    elif what == "rootfs":
        gpu.config["root"]["path"] = "nowhere"
        said = "invalid rootfs"
    else:
        gpu.process["terminal"] = True
        said = "console"
    assert said in runtime.refused(gpu, env=ENVIRONMENT | sim.env)
    assert calls(sim) == [] and os.listdir(sim.path / "dev") == []


@pytest.mark.native
@pytest.mark.gpurun_only
@pytest.mark.parametrize("user_namespace", [False, True])
def test_the_container_gets_nodes_that_the_host_has_not(
    runtime: Runtime, gpu: Bundle, host: Callable[..., SimulatedDriver], user_namespace: bool
) -> None:
    sim = host()
    if user_namespace:
        gpu.user_namespace()
    out = runtime.output(gpu.sh(LOOK), env=ENVIRONMENT | sim.env)
    assert out.splitlines()[:4] == [
        "/dev/nvidia-uvm 1fe:0 666 0",
        "/dev/nvidia0 c3:0 666 0",
        "/dev/nvidia1 c3:1 666 0",
        "/dev/nvidiactl c3:ff 666 0",
    ]
    assert out.count("No such device or address") == 4, "the cgroup lets them be opened; there is no such driver here"
    assert os.listdir(sim.path / "dev") == []
