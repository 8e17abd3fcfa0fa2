"""Answers of the discovery that are used again: never another one than looking would give."""

from __future__ import annotations

import marshal
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun import cachefile, log
from gpurun.cachefile import save
from gpurun.cdi.edits import ContainerEdits
from gpurun.errors import GpurunError
from gpurun.gpu.host import facts as looked
from gpurun.gpu.nvidia.host import driver
from gpurun.gpu.nvidia.request.records import VOLUME_MOUNTS
from gpurun.gpu.resolve import Inquiry, gpu_edits, no_check
from tests.needs_nodes import require_nodes
from tests.nvml import compile_stub
from tests.simdriver import VERSION, Options, SimulatedDriver, bus_id, make

ASKING = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
Answer = ContainerEdits | str | None


class Host:
    """A simulated driver, a cache, and how often somebody has looked."""

    def __init__(self, sim: SimulatedDriver, cache: Path) -> None:
        self.sim, self.path, self.cache = sim, sim.path, cache
        self.looks = 0
        self.own_env = dict(sim.env)

    def ask(self, *env: str, cache: bool = True, **more: Any) -> Answer:
        try:
            made = gpu_edits(
                Inquiry(
                    env or ASKING, {}, False, self.own_env, prepare=no_check, cache=str(self.cache) if cache else "", **more
                )
            )
        except GpurunError as e:
            return str(e)
        return made

    def looked(self, *env: str, **more: Any) -> bool:
        """Whether the answer, which is the right one, took looking."""
        before = self.looks
        made = self.ask(*env, **more)
        took = self.looks > before
        assert made == self.ask(*env, cache=False, **more)
        return took

    def remember(self) -> None:
        """Ask until the answer is one that is kept."""
        self.ask()
        assert not self.looked()

    def later(self) -> None:
        """Return when the file system's clock has gone on, so that a change is another ctime."""
        probe = self.path / "probe"
        probe.touch()
        first = probe.stat().st_ctime_ns
        while probe.stat().st_ctime_ns == first:
            time.sleep(0.001)
            probe.touch()
        probe.unlink()


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made a moment ago counts as old."""
    monkeypatch.setattr(looked, "SETTLED", -(10**15))


def host_with(options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = make(tmp_path / "host", options)
    require_nodes(made.real_nodes)
    host = Host(made, tmp_path / "cache")
    read = driver.read_driver

    def counted(*args: Any, **more: Any) -> Any:
        host.looks += 1
        return read(*args, **more)

    monkeypatch.setattr(driver, "read_driver", counted)
    return host


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: None) -> Host:
    return host_with(Options(), tmp_path, monkeypatch)


def test_the_second_time_nobody_looks(host: Host) -> None:
    first = host.ask()
    assert host.looks == 1
    assert host.ask() == first and isinstance(first, ContainerEdits) and first.mounts
    assert host.looks == 1
    assert [stat.S_IMODE(os.stat(p).st_mode) for p in (host.cache, *host.cache.iterdir())] == [0o700, 0o600]


@pytest.mark.parametrize(
    "env",
    [
        ("NVIDIA_VISIBLE_DEVICES=0", ASKING[1]),
        (ASKING[0], "NVIDIA_DRIVER_CAPABILITIES=utility"),
        (*ASKING, "NVIDIA_REQUIRE_CUDA=cuda>=11"),
        (*ASKING, "NVIDIA_DISABLE_CUDA_COMPAT=1"),
        (*ASKING, "CUDA_VERSION=12.0"),
    ],
)
def test_another_question_has_its_own_answer(host: Host, env: tuple[str, ...]) -> None:
    host.remember()
    assert host.looked(*env)
    assert not host.looked(*env)
    assert not host.looked()
    assert not host.looked(*ASKING, "PATH=/bin", "HOME=/"), "what has nothing to do with GPUs is another matter"


def test_device_lists_given_as_mounts_are_part_of_the_question(host: Host) -> None:
    settings = host.path / "etc/nvidia-container-runtime/config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("accept-nvidia-visible-devices-as-volume-mounts = true\n")
    host.remember()
    one = (("/dev/null", f"{VOLUME_MOUNTS}/0"),)
    assert host.looked(mounts=one) and not host.looked(mounts=one)
    assert host.ask(mounts=one) != host.ask()
    assert not host.looked(mounts=(("/data", "/data"),))


def test_another_environment_of_our_own_is_another_question(host: Host, tmp_path: Path) -> None:
    host.remember()
    (tmp_path / "config.toml").write_text('[nvidia-container-cli]\nenvironment = ["A=b"]\n')
    for name, value in (
        ("NVIDIA_CTK_CONFIG_FILE_PATH", str(tmp_path / "config.toml")),
        ("XDG_CONFIG_HOME", str(tmp_path)),
        ("GPURUN_MODE", "legacy"),
        ("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path)),
    ):
        host.own_env = host.sim.env | {name: value}
        assert host.looked(), name


def test_another_gpurun_looks_itself(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.remember()
    monkeypatch.setattr(cachefile, "__version__", "0.0.0")
    assert host.looked()


def objects(host: Host) -> Iterator[Path]:
    return (path for path in sorted(host.path.rglob("*")))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("options", [Options(), Options(layout="rhel", compat32=True), Options(gpus=3, mig=((0, 1, 0),))])
def test_whatever_goes_away_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: None, options: Options
) -> None:
    """Each file, directory, link and node of the host, one after the other."""
    if options.compat32 and os.uname().machine != "x86_64":
        pytest.skip("x86_64 only")
    host = host_with(options, tmp_path, monkeypatch)
    changed = 0
    for path in list(objects(host)):
        before = host.ask()
        away = tmp_path / "away"
        path.rename(away)
        now = host.ask()
        assert now == host.ask(cache=False), path
        changed += now != before
        away.rename(path)
        assert host.ask() == host.ask(cache=False) == before, path
    assert changed > 80, "most of them count"


def test_whatever_changes_in_place_is_noticed(host: Host) -> None:
    """Content and mode of each file, including a library that everybody may write from now on."""
    changed = 0
    for path in [p for p in objects(host) if p.is_file() and not p.is_symlink()]:
        content, mode = path.read_bytes(), path.stat().st_mode
        for other, writable in ((content.replace(b"1", b"7"), mode), (content, 0o666)):
            before = host.ask()
            host.later()
            path.write_bytes(other)
            path.chmod(writable)
            now = host.ask()
            assert now == host.ask(cache=False), path
            changed += now != before
            path.write_bytes(content)
            path.chmod(mode)
            host.later()
    assert changed > 30


def test_whatever_appears_is_noticed(host: Host) -> None:
    """In each place where something was looked for in vain: a library, which is as good as any file."""
    facts = recorded(host)
    library = next(host.path.rglob(f"libcuda.so.{VERSION}"))
    missing = [Path(path) for path in facts[1]]
    assert len(missing) > 10
    names = {path.name for path in missing}
    directories = [Path(path) for path, _, _, _ in facts[0] if os.path.isdir(path)]
    changed = 0
    for path in (
        *missing,
        *[d / library.name for d in directories],
        *[d / n for d in directories for n in sorted(names)[:2]],
    ):
        if path.exists() or not path.parent.is_dir():
            continue
        before = host.ask()
        host.later()
        shutil.copy(library, path)
        now = host.ask()
        assert now == host.ask(cache=False), path
        changed += now != before
        path.unlink()
        host.later()
    assert changed > 2


def recorded(host: Host) -> Any:
    kept: list[Any] = []
    was = looked.Listener.facts

    def facts(self: looked.Listener) -> Any:
        kept.append(was(self))
        return kept[-1]

    looked.Listener.facts = facts  # type: ignore[method-assign]
    try:
        host.ask()
    finally:
        looked.Listener.facts = was  # type: ignore[method-assign]
    return kept[-1]


def upgrade(host: Host) -> None:
    make(host.path.parent / "new", Options(version="1000.10.1"))
    shutil.rmtree(host.path)
    (host.path.parent / "new").rename(host.path)


def add_gpu(host: Host) -> None:
    make(host.path.parent / "new", Options(gpus=3))
    shutil.rmtree(host.path / "proc")
    (host.path.parent / "new/proc").rename(host.path / "proc")
    (host.path / "sys").rename(host.path / "old")
    (host.path.parent / "new/sys").rename(host.path / "sys")
    for node in (host.path.parent / "new/dev").iterdir():
        if node.name.startswith("nvidia"):
            node.rename(host.path / "dev" / node.name)


def exclude_gpu(host: Host) -> None:
    path = host.path / f"proc/driver/nvidia/gpus/{bus_id(0)}/information"
    path.write_text(path.read_text().replace("GPU Excluded:\t No", "GPU Excluded:\t Yes"))


def divide_gpu(host: Host) -> None:
    make(host.path.parent / "new", Options(mig=((0, 1, 0),)))
    for name in ("proc", "dev"):
        (host.path / name).rename(host.path / f"old-{name}")
        (host.path.parent / "new" / name).rename(host.path / name)


def set_params(host: Host) -> None:
    (host.path / "proc/driver/nvidia/params").write_text("ModifyDeviceFiles: 1\nDeviceFileMode: 432\n")


def protect_node(host: Host) -> None:
    os.chmod(host.path / "dev/dri/card0", 0o600)


def give_node(host: Host) -> None:
    os.chown(host.path / "dev/dri/card0", 0, 4711)


def move_gpu(host: Host) -> None:
    (host.path / f"sys/bus/pci/devices/{bus_id(0)}/numa_node").write_text("5\n")


def start_service(host: Host) -> None:
    (host.path / "run/nvidia-fabricmanager").mkdir(parents=True)
    (host.path / "run/nvidia-fabricmanager/socket").touch()


def write_settings(host: Host) -> None:
    (host.path / "etc/nvidia-container-runtime").mkdir(parents=True)
    (host.path / "etc/nvidia-container-runtime/config.toml").write_text('supported-driver-capabilities = "compute"\n')


def relink(host: Host) -> None:
    smi = next(p for p in host.path.rglob("nvidia-smi") if not p.is_symlink())
    shutil.copy(smi, smi.with_name("nvidia-smi.other"))
    path = host.path / "usr/bin/nvidia-smi"
    path.unlink(missing_ok=True)
    path.symlink_to(f"/{smi.with_name('nvidia-smi.other').relative_to(host.path)}")


@pytest.mark.parametrize(
    "change",
    [
        upgrade, add_gpu, exclude_gpu, divide_gpu, set_params, protect_node, give_node, move_gpu, start_service,
        write_settings, relink,
    ],
)  # fmt: skip
def test_a_changed_host_has_another_answer(host: Host, change: Callable[[Host], None]) -> None:
    host.remember()
    before = host.ask()
    host.later()
    change(host)
    assert host.looked()
    assert host.ask() != before
    assert not host.looked(), "and that one is remembered in its place"


def test_a_driver_root_that_is_another_directory_now(tmp_path: Path, host: Host) -> None:
    (tmp_path / "link").symlink_to(host.path)
    host.own_env = {"GPURUN_SYSROOT": str(tmp_path / "link")}
    host.remember()
    before = host.ask()
    make(tmp_path / "other", Options(gpus=1))
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    assert host.looked() and host.ask() != before


def test_what_was_changed_a_moment_ago_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could change again without another ctime, which counts in ticks of a clock."""
    host = host_with(Options(), tmp_path, monkeypatch)
    monkeypatch.setattr(time, "time_ns", lambda: 1 << 62)
    newest = max(ctime for _, _, _, ctime in recorded(host)[0])
    shutil.rmtree(host.cache)
    monkeypatch.setattr(time, "time_ns", lambda: newest + looked.SETTLED - 1)
    assert host.looked() and host.looked() and not host.cache.exists()
    monkeypatch.setattr(time, "time_ns", lambda: newest + looked.SETTLED)
    assert host.looked() and not host.looked()


def not_by_env(host: Host) -> None:
    host.own_env["GPURUN_GPU_CACHE"] = "off"


def not_by_settings(host: Host) -> None:
    path = host.path / "etc/nvidia-container-runtime/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("[gpurun]\ngpu-cache = false\n")


def with_swarm(host: Host) -> None:
    path = host.path / "etc/nvidia-container-runtime/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text('swarm-resource = "DOCKER_RESOURCE_GPU"\n')


def with_mps(host: Host) -> None:
    (host.path / "tmp/nvidia-mps").mkdir(parents=True)


def without_a_node(host: Host) -> None:
    (host.path / "dev/nvidia-uvm").unlink()


@pytest.mark.parametrize("how", [not_by_env, not_by_settings, with_swarm, with_mps, without_a_node])
def test_what_is_not_to_be_remembered(host: Host, how: Callable[[Host], None]) -> None:
    host.remember()
    how(host)
    kept = [path.read_bytes() for path in host.cache.iterdir()]
    assert host.looked() and host.looked()
    assert [path.read_bytes() for path in host.cache.iterdir()] == kept


def test_what_nvml_was_asked_is_not_remembered(host: Host) -> None:
    library = next(host.path.rglob(f"libnvidia-ml.so.{VERSION}"))
    library.unlink()
    compile_stub(library, gpus=2)
    for requirement in ("brand=nvidia", "brand=tesla"):
        env = (*ASKING, f"NVIDIA_REQUIRE_CUDA={requirement}")
        assert host.looked(*env) and host.looked(*env)
    assert not host.cache.exists()


@pytest.mark.parametrize("damage", ["byte", "empty", "other owner", "open directory", "other records", "link"])
def test_a_damaged_entry_is_none_and_written_anew(host: Host, damage: str, tmp_path: Path) -> None:
    host.remember()
    (entry,) = host.cache.iterdir()
    whole = entry.read_bytes()
    if damage == "byte":
        entry.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    elif damage == "empty":
        entry.write_bytes(b"")
    elif damage == "other owner":
        os.chown(host.cache, 1000, 1000)
    elif damage == "open directory":
        host.cache.chmod(0o777)
    elif damage == "other records":
        save(str(host.cache), entry.name, marshal.dumps((((),) * 6, ["ContainerEdits", ["Nothing"]])))
    else:
        entry.rename(tmp_path / "elsewhere")
        entry.symlink_to(tmp_path / "elsewhere")
    assert host.looked()
    if damage in ("other owner", "open directory"):
        assert host.looked() and entry.read_bytes() == whole, "it is not ours to write to either"
    else:
        assert not host.looked() and entry.is_file() and not entry.is_symlink()


def test_debug_says_who_answered(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(log, "debug", said.append)
    host.ask()
    host.ask()
    (host.path / "proc/driver/nvidia/params").write_text("x")
    host.ask()
    assert [line.partition(": ")[2] for line in said] == [
        "nothing is remembered for this request",
        f"answered by {next(host.cache.iterdir())}: all that was looked at is as it was",
        f"{host.path}/proc/driver/nvidia/params is not as it was remembered",
    ]
