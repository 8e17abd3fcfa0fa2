"""Limits of GPU memory that NVIDIA's driver keeps: what is asked for, who keeps it, and what NVML is told, by a stub."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.cdi.edits import MemoryLimit
from gpurun.cgroup.tree import Tree
from gpurun.engine.plan.gpu_memory import plan_gpu_memory
from gpurun.errors import ConfigError, GpuError
from gpurun.gpu.leases.limits import Keeper, keeper_of
from gpurun.gpu.nvidia.cdi.known_hooks import parse_call
from gpurun.gpu.nvidia.request.memory_limits import read_memory_limits
from tests.conftest import MakeBundle
from tests.gpu.leases.conftest import MakeHost, make_host  # noqa: F401
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.nvml import compile_stub
from tests.simdriver import MULTIARCH, VERSION, SimulatedDriver, uuid

MIB = 1 << 20
NO_LIMIT = (1 << 64) - 1
REQUEST, LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"


@pytest.mark.parametrize(
    ("env", "soft", "hard", "where"),
    [
        ([f"{LIMIT}=8192"], 8192 * MIB, 8192 * MIB, LIMIT),
        ([f"{REQUEST}=100"], 100 * MIB, NO_LIMIT, REQUEST),
        ([f"{REQUEST}=1", f"{LIMIT}=2", f"{LIMIT}=3"], MIB, 3 * MIB, LIMIT),
        ([f"{LIMIT}S=7"], 7 * MIB, 7 * MIB, f"{LIMIT}S"),
        ([f"{LIMIT}S=7", f"{LIMIT}=9"], 9 * MIB, 9 * MIB, LIMIT),
    ],
)
def test_what_the_variables_ask_for(env: list[str], soft: int, hard: int, where: str) -> None:
    assert read_memory_limits(("PATH=/bin", *env), NO_LIMIT) == (soft, hard, f"process.env {where}")


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ([f"{LIMIT}=8GiB"], f"process.env {LIMIT}: '8GiB' must be a number of MiB, such as 8192"),
        ([f"{LIMIT}="], f"process.env {LIMIT}: '' must be"),
        ([f"{REQUEST}=-1"], f"process.env {REQUEST}: '-1' must be"),
        ([f"{LIMIT}=99999999999999999999"], "must be a number"),
        ([f"{LIMIT}=1\x1b[2J"], "must be a number"),
        ([f"{REQUEST}=3", f"{LIMIT}=2"], f"process.env {REQUEST}: 3 MiB are more than the limit, the 2 MiB of {LIMIT}"),
    ],
)
def test_what_they_cannot_ask_for(env: list[str], text: str) -> None:
    with pytest.raises(ConfigError) as e:
        read_memory_limits(tuple(env), NO_LIMIT)
    assert text in str(e.value) and "\x1b" not in str(e.value)
    assert read_memory_limits(("NVIDIA_GPU_MEMORY_=1",), NO_LIMIT) is None


@pytest.mark.parametrize(
    ("memory", "threads", "wish", "obstacles", "keeper"),
    [
        (8, 0, "auto", ("", ""), Keeper(True, False)),
        (8, 50, "auto", ("", ""), Keeper(True, True)),
        (0, 50, "auto", ("", ""), Keeper(False, True)),
        (8, 0, "auto", ("", "it is old"), Keeper(False, True, "it is old")),
        (8, 0, "mps", ("",), Keeper(False, True, "the site's shares.memory says so")),
        (0, 50, "nvml", ("it is old",), Keeper(False, True)),
    ],
)
def test_who_keeps_a_share(memory: int, threads: int, wish: str, obstacles: tuple[str, ...], keeper: Keeper) -> None:
    assert keeper_of(memory, threads, wish, obstacles, "here") == keeper


def test_a_site_that_wants_the_driver_to() -> None:
    with pytest.raises(GpuError, match=r"^here: this site has a share's memory limited by the driver .* and it is old$"):
        keeper_of(8, 0, "nvml", ("it is old",), "here")


def test_where_the_driver_limits_a_cgroup() -> None:
    limits = (MemoryLimit("GPU-1", 1, 1, "/lib/nvml", "here"),)
    assert plan_gpu_memory(limits, Tree("/sys/fs/cgroup", ())) == ()
    with pytest.raises(ConfigError, match=r"^here: the driver limits .* and this host has its cgroup v2 at /v2"):
        plan_gpu_memory(limits, Tree("/v2", ()))


class Told:
    """What the stub has been told to set: (GPU, soft MiB, hard MiB or -1, whether files could be written, cgroup)."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def __call__(self) -> list[tuple[int, int, int, str, str]]:
        found: list[tuple[int, int, int, str, str]] = []
        while True:
            try:
                gpu, soft, hard, may, cgroup = self._socket.recv(8192).decode().split(" ", 4)
            except BlockingIOError:
                return found
            found.append((int(gpu), int(soft), int(hard), may, cgroup))


@pytest.fixture
def host(make_host: MakeHost) -> SimulatedDriver:  # noqa: F811
    """Two GPUs of 80 GiB each."""
    return make_host(2, nvml="well", mps_programs=True)


@pytest.fixture
def told(host: SimulatedDriver) -> Iterator[Told]:
    """The driver of *host* becomes one that can limit memory."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "told")
        made = Told(path)
        library = host.path / f"usr/lib/{MULTIARCH[os.uname().machine]}/nvidia/current/libnvidia-ml.so.{VERSION}"
        library.unlink()
        compile_stub(library, gpus=2, limits=path)
        yield made


def asking(b: Bundle, devices: str, *env: str) -> Bundle:
    b.process["env"] += [f"NVIDIA_VISIBLE_DEVICES={devices}", *env]
    return b.sh("env | grep ^CUDA_MPS; echo ready; exec sleep 600")


def started(runtime: Runtime, b: Bundle, host: SimulatedDriver, **env: str) -> Container:
    container = runtime.start(b, env=ENVIRONMENT | host.env | env)
    container.wait_for("ready\n")
    return container


@pytest.mark.native
@pytest.mark.gpurun_only
def test_nvidias_variables(told: Told, runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    """Each GPU of the container is limited for its own cgroup, and what is kept for it is given back with it."""
    one = started(runtime, asking(bundle(), "all", f"{REQUEST}=1024", f"{LIMIT}=8192"), host)
    path = f"/sys/fs/cgroup{one.cgroup()}"
    assert told() == [(gpu, 1024, 8192, "open", path) for gpu in (0, 1)]
    said = " ".join(runtime("explain", str(one.bundle.directory), env=ENVIRONMENT | host.env).out.split())
    assert f"{uuid(1)} (at most 8192 MiB of its memory, 1024 MiB of it kept for it, by the driver (NVML)" in said
    one.kill("KILL")
    one.wait()
    assert one.delete().rc == 0
    assert told() == [(gpu, 0, -1, "open", path) for gpu in (0, 1)]


@pytest.mark.native
@pytest.mark.gpurun_only
def test_a_share_that_the_driver_keeps(
    told: Told, runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, tmp_path: Path
) -> None:
    one = started(runtime, asking(bundle(), "1", "GPURUN_GPU_MEMORY=8GiB"), host)
    assert one.out == "ready\n", "no MPS is needed, and nothing of it is there"
    assert told() == [(1, 8192, 8192, "open", f"/sys/fs/cgroup{one.cgroup()}")]
    env = ENVIRONMENT | host.env
    listed = " ".join(runtime("gpu", "list", env=env).out.split())
    assert f"8 GiB of it for {one.id}" in listed
    text = runtime.refused(asking(bundle(), "1", "GPURUN_GPU_MEMORY=73GiB"), env=env)
    assert "GPU 1 has no room for a share of 73 GiB: 72 of 80 GiB left" in text and told() == []
    said = " ".join(runtime("gpu", "explain", "NVIDIA_VISIBLE_DEVICES=0", "GPURUN_GPU_MEMORY=1GiB", env=env).out.split())
    assert "the memory would be limited by the driver (NVML)" in said and "CUDA_MPS" not in said
    assert f"{uuid(0)} (at most 1024 MiB of its memory, 1024 MiB of it kept for it, by the driver (NVML)" in said
    site = tmp_path / "site.toml"
    site.write_text('[shares]\nmemory = "mps"\n')
    words = ("NVIDIA_VISIBLE_DEVICES=0", "GPURUN_GPU_MEMORY=1GiB")
    said = " ".join(runtime("gpu", "explain", *words, env=env | {"GPURUN_CONFIG": str(site)}).out.split())
    assert "limited by MPS, because the site's shares.memory says so" in said and "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" in said
    assert told() == []


@pytest.mark.native
@pytest.mark.gpurun_only
def test_nvidias_hook_is_done(told: Told, runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    """As an engine puts it in for a CDI device: not run, which would fail here, but done; without variables, nothing."""
    for env, wanted in (((f"{LIMIT}=64",), [(0, 64, 64)]), ((), [])):
        b = asking(bundle(), "0", *env)
        words = ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--driver-root", "/", "--gpu-id", uuid(0)]
        b.config["hooks"] = {"createRuntime": [{"path": "/nowhere/nvidia-cdi-hook", "args": words}]}
        started(runtime, b, host)
        assert [one[:3] for one in told()] == wanted


@pytest.mark.native
@pytest.mark.gpurun_only
def test_a_create_that_fails_keeps_nothing(told: Told, runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    b = asking(bundle(), "0", f"{LIMIT}=64")
    b.config["hooks"] = {"createRuntime": [{"path": "/bin/false"}]}
    runtime.refused(b, env=ENVIRONMENT | host.env)
    (first, last) = told()
    assert first[:4] == (0, 64, 64, "open") and last == (0, 0, -1, "open", first[4])


@pytest.mark.native
@pytest.mark.gpurun_only
def test_a_driver_that_cannot(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    text = runtime.refused(asking(bundle(), "0", f"{LIMIT}=64"), env=ENVIRONMENT | host.env)
    assert f"process.env {LIMIT}: this driver cannot limit a GPU's memory for a container" in text
    result = runtime.run(asking(bundle(), "void", f"{LIMIT}=64").sh("echo $NVIDIA_GPU_MEMORY_LIMIT"), env=ENVIRONMENT)
    assert (result.rc, result.out) == (0, "64\n"), "without GPUs there is nothing to limit"


@pytest.mark.native
@pytest.mark.gpurun_only
def test_the_hook_of_another_runtime(told: Told, host: SimulatedDriver, bundle: MakeBundle, runtime: Runtime) -> None:
    """As a program: the container's process says which cgroup, config.json what is asked; without one nothing is done."""
    b = asking(bundle(), "0", f"{REQUEST}=5")
    b.write()
    hook = ("hook", "apply-cuda-memory-limits", "--driver-root=", "--gpu-id", uuid(1), "--gpu-id", uuid(0))
    for place, wanted in ((b.directory, [(1, 5, -1), (0, 5, -1)]), (b.directory / "none", [])):
        state = json.dumps({"ociVersion": "1.0.0", "id": "x", "pid": os.getpid(), "bundle": str(place)})
        done = runtime(*hook, stdin=state.encode(), env=ENVIRONMENT | host.env)
        assert done.rc == 0, done
        found = told()
        assert [one[:3] for one in found] == wanted
        own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        assert {one[4] for one in found} <= {f"/sys/fs/cgroup{own}"}


@pytest.mark.native
@pytest.mark.gpurun_only
def test_a_hook_that_says_how_much(told: Told, runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    """gpurun's own option, as its DRA driver uses it: run like any hook, and the container's variables change nothing."""
    b = asking(bundle(), "0")
    words = [
        "gpurun",
        "hook",
        "apply-cuda-memory-limits",
        "--driver-root",
        "/",
        "--gpu-id",
        uuid(0),
        "--limit",
        str(96 << 20),
    ]
    env = [f"{name}={value}" for name, value in host.env.items()]
    b.config["hooks"] = {"createRuntime": [{"path": str(runtime.path), "args": words, "env": env}]}
    b.process["env"] += [f"{LIMIT}S=1", f"{REQUEST}S=1"]
    one = started(runtime, b, host)
    variables, hook = told()
    assert variables[:3] == (0, 1, 1) and hook == (0, 0, 96, "open", f"/sys/fs/cgroup{one.cgroup()}")


@pytest.mark.parametrize("limit", ["", "-1", "8Gi", "9" * 30])
def test_a_hook_with_a_limit_that_is_none(limit: str) -> None:
    with pytest.raises(ConfigError, match=r'^apply-cuda-memory-limits: --limit ".*" is not a number of bytes'):
        parse_call(("apply-cuda-memory-limits", "--gpu-id", "GPU-1", "--limit", limit))


@pytest.mark.native
@pytest.mark.gpurun_only
def test_a_gpu_that_comes_later(told: Told, runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver) -> None:
    one = started(runtime, asking(bundle(), "0", f"{LIMIT}=64"), host)
    done = runtime("gpu", "attach", one.id, "1", env=ENVIRONMENT | host.env)
    assert done.rc == 0, done.text
    assert [found[:4] for found in told()] == [(0, 64, 64, "open"), (1, 64, 64, "open")]
    one.kill("KILL")
    one.wait()
    assert one.delete().rc == 0
    assert [found[:3] for found in told()] == [(0, 0, -1), (1, 0, -1)]
