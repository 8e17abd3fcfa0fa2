"""GPUs that came after the container of a part without privileges: the part ends, so that a new one may open them."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from gpurun.cgroup import manager
from gpurun.cgroup.devices import compile_filter, emulate
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.kubernetes import late_gpus
from gpurun.kubernetes.late_gpus import LateGpus, forbidden_nodes
from gpurun.oci.resources import DeviceRule
from tests.cgroup.conftest import Spawn, base, spawn, tree  # noqa: F401
from tests.needs_nodes import require_nodes
from tests.simcards import amd
from tests.simdriver import Options, make, minor

MINE = {"GPURUN_GPU_OPTIONAL": "true"}


@pytest.mark.parametrize("denied", ["", "nvidiactl", "nvidia0", "nvidia-caps"])
def test_what_the_rules_of_the_cgroup_forbid(denied: str, base: Path, spawn: Spawn, tmp_path: Path) -> None:  # noqa: F811
    host = make(tmp_path / "host", Options(gpus=2, mig=((minor(0, 2), 1, 0),)))
    require_nodes(host.real_nodes)
    dev = host.path / "dev"
    capabilities = sorted((dev / "nvidia-caps").iterdir())
    for path in capabilities:
        path.chmod(0o444)  # as the driver has them
    meant = capabilities if denied == "nvidia-caps" else [dev / denied] if denied else []
    (dev / "nvidia1").chmod(0o000)  # of permissions a new container would have no more
    found = forbidden(meant, host.path, base, spawn)
    assert found <= set(map(str, meant)) and bool(found) is bool(meant)


@pytest.mark.parametrize("denied", ["", "kfd", "dri/renderD129"])
def test_of_amds_gpus(denied: str, base: Path, spawn: Spawn, tmp_path: Path) -> None:  # noqa: F811
    host = amd.mi210(tmp_path / "host", count=2)
    require_nodes(host.real_nodes)
    place = tmp_path / "host"
    meant = [place / "dev" / denied] if denied else []
    assert forbidden(meant, place, base, spawn) == set(map(str, meant))


def forbidden(nodes: list[Path], sysroot: Path, base: Path, spawn: Spawn) -> set[str]:  # noqa: F811
    """What :func:`forbidden_nodes` says of the host *sysroot* in a cgroup that forbids *nodes*."""
    rules = [DeviceRule(True, "a", None, None, "rwm")]
    for path in nodes:
        number = path.stat().st_rdev
        rules.append(DeviceRule(False, "c", os.major(number), os.minor(number), "rwm"))
    read, write = multiprocessing.Pipe(duplex=False)

    def ask() -> None:
        write.send(forbidden_nodes(Roots("/", str(sysroot))))

    cgroup = base / "part"
    cgroup.mkdir()
    fd = os.open(cgroup, os.O_RDONLY)
    manager.attach_devices(fd, manager.load_devices(compile_filter(emulate(tuple(rules)))))
    os.close(fd)
    os.waitpid(spawn(cgroup, ask), 0)
    cgroup.rmdir()
    return set(read.recv())


def looked(monkeypatch: pytest.MonkeyPatch, answers: list[list[str]], env: dict[str, str]) -> tuple[bool, int]:
    """(whether the part was told to end, how many looks there were) when one look after the other finds *answers*."""
    ended, over = threading.Event(), threading.Event()
    looks = 0

    def answer(_: Roots) -> list[str]:
        nonlocal looks
        looks += 1
        if looks > len(answers):
            over.set()
        return answers[min(looks, len(answers)) - 1]

    def end() -> None:
        ended.set()
        over.set()

    monkeypatch.setattr(late_gpus, "forbidden_nodes", answer)
    late = LateGpus(Roots(), env, end, interval_s=0.01)
    late.start()
    assert over.wait(60)
    late.stop()
    for thread in [thread for thread in threading.enumerate() if thread.name == "late-gpus"]:
        thread.join(60)
    return ended.is_set(), looks


def test_a_part_ends_when_there_are_such_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(monkeypatch, [[], [], ["/dev/nvidiactl", "/dev/nvidia0"]], MINE) == (True, 3)
    # A container that was made without GPUs, while the driver was loaded.
    assert looked(monkeypatch, [["/dev/nvidiactl", "/dev/nvidia0"]] * 2, MINE)[0]
    # One that has another GPU, whose site gives away no more: a new container would have no more either.
    assert not looked(monkeypatch, [["/dev/nvidia0"]] * 5, MINE)[0]
    assert looked(monkeypatch, [["/dev/nvidia0"], ["/dev/nvidia0"], ["/dev/nvidia0", "/dev/nvidia1"]], MINE)[0]
    # AMD's that were there and are not for computing are none of its business; one whose driver is loaded later is.
    assert not looked(monkeypatch, [["/dev/dri/renderD128"]] * 5, MINE)[0]
    assert looked(monkeypatch, [[], ["/dev/kfd"]], MINE)[0]


def test_who_may_open_everything_or_was_given_nothing_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for env in ({}, {"GPURUN_GPU_OPTIONAL": "false"}):
        late = LateGpus(Roots(), env, lambda: pytest.fail("it ends"), interval_s=0.01)
        monkeypatch.setattr(late_gpus, "forbidden_nodes", lambda _: pytest.fail("it looks"))
        late.start()
        assert not [thread for thread in threading.enumerate() if thread.name == "late-gpus"]


def test_a_node_without_a_driver_forbids_nothing(tmp_path: Path) -> None:
    assert forbidden_nodes(Roots("/", str(tmp_path))) == []
