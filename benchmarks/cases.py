"""What is measured: each :class:`Case` is one round of work for one runtime, which keeps its times by label."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import cdi
from benchmarks.bed import Failed, Runtime, Spent, become_subreaper, plain_config, processor_ms
from gpurun.gpu.host.facts import SETTLED
from tests.security.profile import engine_profile
from tests.simdriver import Options
from tests.simdriver import make as make_driver

LIFE_COMMANDS = ("create", "start", "state", "kill", "delete")
LIFE = "create+...+delete"
RUN = "run true"
EXEC = "exec true"
PLAIN = "create, plain, same round"
GPU = "create, 8 GPUs, all capabilities"
GPU_ANEW = "create, 8 GPUs, looking for the driver"
GPU_DELETE = "delete, 8 GPUs"
GPU_LIFE = "create+...+delete, 8 GPUs"
NVIDIA_COMMANDS = tuple(f"{command}, beside NVIDIA's" for command in LIFE_COMMANDS)
NVIDIA_LIFE = f"{LIFE}, beside NVIDIA's"
CDI_CREATE = "create, 8 GPUs by CDI"
CDI_DELETE = "delete, 8 GPUs by CDI"
CDI_LIFE = f"{LIFE}, 8 GPUs by CDI"
UNFILTERED = "create, no seccomp, same round"
SECCOMP = "create, seccomp profile, cached"
LOADED = "create, 4 busy loops beside it"
PARALLEL = "each of 100 containers, 8 at a time"
EXECS = "each of 1,000 execs, 8 at a time"
LIST = "list of 500"
VERSION = "--version"

BUSY_LOOPS = 4
WORKERS = 8
EXEC_CONTAINERS = 20


class Case(NamedTuple):
    """One kind of work.  *begin* and *finish* stand around all rounds; *who* takes part is a kind of runtime."""

    name: str
    once: Callable[[Runtime, int], None]
    begin: Callable[[Runtime, int], None] = lambda runtime, count: None
    finish: Callable[[Runtime, int], None] = lambda runtime, count: None
    who: tuple[str, ...] = ("gpurun", "peer")
    rounds: int = 0  # at most; 0: as many as are asked for
    containers: int = 1  # containers in one round
    short_containers: int = 1


def _one_life(runtime: Runtime, container: str, labels: tuple[str, ...], total_label: str) -> None:
    total = runtime.create(labels[0], container)
    total = total.and_then(runtime.call(labels[1], "start", container))
    total = total.and_then(runtime.call(labels[2], "state", container))
    total = total.and_then(runtime.call(labels[3], "kill", container, "KILL"))
    total = total.and_then(runtime.reap(container))
    total = total.and_then(runtime.call(labels[4], "delete", container))
    runtime.keep(total_label, total)


def _life(runtime: Runtime, count: int) -> None:
    """As a shim leads it; ``--version`` is the floor: a process that prints a line."""
    runtime.call(VERSION, "--version")
    container = runtime.new_id()
    runtime.write_bundle(container, ["sleep", "1000"])
    _one_life(runtime, container, LIFE_COMMANDS, LIFE)


def _run(runtime: Runtime, count: int) -> None:
    container = runtime.new_id()
    runtime.write_bundle(container, ["true"])
    runtime.call(RUN, "run", "--bundle", str(runtime.bundle(container)), container)


def _begin_exec(runtime: Runtime, count: int) -> None:
    runtime.write_bundle("sleeper", ["sleep", "1000"])
    runtime.create("", "sleeper")
    runtime.call("", "start", "sleeper")


def _exec(runtime: Runtime, count: int) -> None:
    runtime.call(EXEC, "exec", "sleeper", "/bin/true")


def _create(runtime: Runtime, label: str, config: dict[str, Any]) -> None:
    container = runtime.new_id()
    runtime.write_bundle(container, ["sleep", "1000"], config)
    runtime.create(label, container)
    runtime.end(container)


def _begin_gpu_driver(runtime: Runtime) -> None:
    """A simulated driver of its own for each case: two cases of one run use one."""
    directory = Path(tempfile.mkdtemp(prefix="driver.", dir=runtime.directory))
    runtime.environment["GPURUN_SYSROOT"] = str(make_driver(directory, Options(gpus=8)).path)
    time.sleep(1.1 * SETTLED / 1e9)  # what has just been installed is not remembered


def _begin_gpu(runtime: Runtime, count: int) -> None:
    _begin_gpu_driver(runtime)
    _create(runtime, "", _gpu_config())


def _gpu_config() -> dict[str, Any]:
    config = plain_config()
    config["process"]["env"] += ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    return config


def _gpu(runtime: Runtime, count: int) -> None:
    """A create with every GPU and capability, and a plain one beside it, in the same environment.

    As on a host that runs containers the driver is remembered (gpu/nvidia/discovery_cache.py); and once it is not.
    """
    _create(runtime, PLAIN, plain_config())
    runtime.environment["GPURUN_GPU_CACHE"] = "off"
    _create(runtime, GPU_ANEW, _gpu_config())
    del runtime.environment["GPURUN_GPU_CACHE"]
    container = runtime.new_id()
    runtime.write_bundle(container, ["sleep", "1000"], _gpu_config())
    _one_life(runtime, container, (GPU, "", "", "", GPU_DELETE), GPU_LIFE)


def _finish_gpu(runtime: Runtime, count: int) -> None:
    del runtime.environment["GPURUN_SYSROOT"]


#: NVIDIA's runtime where it is fastest: it reads a CDI file and asks no driver.
NVIDIA_CONFIG = """\
[nvidia-container-runtime]
mode = "cdi"
runtimes = ["runc"]
[nvidia-container-runtime.modes.cdi]
spec-dirs = ["{directory}"]
"""


def _begin_gpu_life(runtime: Runtime, count: int) -> None:
    """One driver for all; for NVIDIA's the CDI file that gpurun writes of it, with NVIDIA's own program in its hooks."""
    _begin_gpu_driver(runtime)
    if runtime.kind == "nvidia":
        directory = runtime.directory / "cdi"
        directory.mkdir()
        cdi.generate(runtime, cdi.find_hook([runtime.path]), directory / "nvidia.yaml")
        config = runtime.directory / "config.toml"
        config.write_text(NVIDIA_CONFIG.format(directory=directory))
        runtime.environment["NVIDIA_CTK_CONFIG_FILE_PATH"] = str(config)
    else:
        _create(runtime, "", _gpu_config())  # finds the driver, which is remembered from then on


def _gpu_life(runtime: Runtime, count: int) -> None:
    container = runtime.new_id()
    runtime.write_bundle(container, ["sleep", "1000"], _gpu_config())
    _one_life(runtime, container, NVIDIA_COMMANDS, NVIDIA_LIFE)


def _seccomp(runtime: Runtime, count: int) -> None:
    """With a profile of the size of an engine's default, compiled before, and without."""
    _create(runtime, UNFILTERED, plain_config())
    config = plain_config()
    config["linux"]["seccomp"] = engine_profile()
    _create(runtime, SECCOMP, config)


def _begin_cdi(runtime: Runtime, count: int) -> None:
    _begin_gpu_driver(runtime)
    cdi.generate(runtime, cdi.find_hook(runtime.peers), runtime.directory / "nvidia.json")


def _cdi(runtime: Runtime, count: int) -> None:
    """The life of a container with eight GPUs from the config that Podman and Docker write, the same for each runtime."""
    container = runtime.new_id()
    runtime.write_bundle(container, ["sleep", "1000"], cdi.config_with(runtime.directory / "nvidia.json"))
    _one_life(runtime, container, (CDI_CREATE, "", "", "", CDI_DELETE), CDI_LIFE)


@contextmanager
def _busy_loops() -> Iterator[None]:
    """Processes that compute, and are there by now, as other containers of a node are."""
    command = ["sh", "-c", "echo; while :; do :; done"]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(BUSY_LOOPS)]
    try:
        for loop in loops:
            assert loop.stdout is not None and loop.stdout.read(1) == b"\n"
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()


def _loaded(runtime: Runtime, count: int) -> None:
    container = runtime.new_id()
    runtime.write_bundle(container, ["sleep", "1000"])
    with _busy_loops():
        runtime.create(LOADED, container)
    runtime.end(container)


def _begin_parallel(runtime: Runtime, count: int) -> None:
    for number in range(count):
        runtime.write_bundle(f"p{number}", ["sleep", "1000"])


def _parallel(runtime: Runtime, count: int) -> None:
    """Containers made, started and deleted, eight at a time."""

    def work(number: int) -> None:
        runtime.create("", f"p{number}")
        runtime.call("", "start", f"p{number}")
        runtime.end(f"p{number}")

    _in_workers(runtime, PARALLEL, count, work)


def _in_workers(runtime: Runtime, label: str, count: int, work: Callable[[int], None]) -> None:
    """*work* for each number below *count*: each of eight processes does its share, one after the other.  What one of them
    takes is kept under *label*, without what these processes take themselves."""
    begin = time.perf_counter_ns()
    said, say = os.pipe()
    workers = []
    for worker in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            os._exit(_work(work, range(worker, count, WORKERS), say))
        workers.append(pid)
    failed = [pid for pid in workers if os.waitpid(pid, 0)[1]]
    taken = (time.perf_counter_ns() - begin) / 1e6
    os.close(say)
    with os.fdopen(said) as reader:
        processor = sum(map(float, reader.read().split()))
    if failed:
        raise Failed(f"{runtime.version}: {len(failed)} of {WORKERS} workers failed (the error is above)")
    runtime.keep(label, Spent(taken / count, processor / count))


def _work(work: Callable[[int], None], numbers: range, say: int) -> int:
    become_subreaper()  # which a fork does not inherit
    try:
        for number in numbers:
            work(number)
    except Exception as e:
        print(f"worker: {e}", file=sys.stderr)
        return 1
    os.write(say, f"{processor_ms(resource.getrusage(resource.RUSAGE_CHILDREN))}\n".encode())
    return 0


def _sleepers(count: int) -> int:
    """How many containers *count* execs go into."""
    return min(EXEC_CONTAINERS, count)


def _begin_execs(runtime: Runtime, count: int) -> None:
    for number in range(_sleepers(count)):
        runtime.write_bundle(f"e{number}", ["sleep", "1000"])
        runtime.create("", f"e{number}")
        runtime.call("", "start", f"e{number}")


def _execs(runtime: Runtime, count: int) -> None:
    """Probes, as a node's pods have them."""

    def work(number: int) -> None:
        runtime.call("", "exec", f"e{number % _sleepers(count)}", "/bin/true")

    _in_workers(runtime, EXECS, count, work)


def _finish_execs(runtime: Runtime, count: int) -> None:
    for number in range(_sleepers(count)):
        runtime.end(f"e{number}")


def _begin_list(runtime: Runtime, count: int) -> None:
    for number in range(count):
        runtime.write_bundle(f"l{number}", ["sleep", "1000"])
        runtime.create("", f"l{number}")
        runtime.call("", "start", f"l{number}")


def _list(runtime: Runtime, count: int) -> None:
    runtime.call(LIST, "list", "--format", "json")


def _finish_list(runtime: Runtime, count: int) -> None:
    for number in range(count):
        runtime.end(f"l{number}")


CASES = (
    Case("life", _life),
    Case("run", _run),
    Case("exec", _exec, _begin_exec, lambda runtime, count: runtime.end("sleeper")),
    Case("gpu", _gpu, _begin_gpu, _finish_gpu, who=("gpurun",)),
    Case("nvidia", _gpu_life, _begin_gpu_life, _finish_gpu, who=("gpurun", "nvidia")),
    Case("cdi", _cdi, _begin_cdi, _finish_gpu),
    Case("seccomp", _seccomp, who=("gpurun",)),
    Case("loaded", _loaded),
    Case("parallel", _parallel, _begin_parallel, rounds=5, containers=100, short_containers=16),
    Case("execs", _execs, _begin_execs, _finish_execs, rounds=3, containers=1000, short_containers=16),
    Case("list", _list, _begin_list, _finish_list, containers=500, short_containers=10),
)
