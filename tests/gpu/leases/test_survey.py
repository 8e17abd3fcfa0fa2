"""Who has which GPU: leases, containers by the nodes in their /dev, processes."""

from __future__ import annotations

import os
import posix
from pathlib import Path

import pytest

from gpurun.gpu.device import Survey
from gpurun.gpu.leases import container_nodes
from gpurun.gpu.leases import survey as module
from gpurun.gpu.leases.container_nodes import Seen
from gpurun.gpu.leases.lease import Lease, Leased
from gpurun.gpu.leases.liveness import own_pid_namespace
from gpurun.gpu.leases.policy import LeasePolicy
from gpurun.gpu.leases.store import new_lease
from gpurun.gpu.leases.survey import describe_lease, holders, is_there, survey
from gpurun.record import replace
from tests.gpu.devices import nvidia
from tests.simdriver import Options, bus_id, make

UNITS = tuple(nvidia(n, model="A100", nodes=((195, n),)) for n in range(3))
FOUND = Survey(UNITS)
NOBODY = 1 << 22


def lease(*indices: int, **more: object) -> Lease:
    units = tuple([Leased(UNITS[n].key, UNITS[n].name, n, n) for n in indices])
    return replace(new_lease("web", "/root", units), **more)


@pytest.fixture
def containers(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """What is found in the /dev of containers."""
    found: list[Seen] = []
    monkeypatch.setattr(container_nodes, "containers_with_nodes", lambda *_: tuple(found))
    return found


def taken(
    *leases: Lease, found: Survey = FOUND, policy: LeasePolicy | None = None, **more: tuple[str, str]
) -> dict[int, str]:
    held = holders(found, leases, policy or LeasePolicy(), **more)
    return {unit.index: held[unit.key] for unit in UNITS if unit.key in held}


def test_by_leases(containers: list[Seen]) -> None:
    assert list(taken(lease(0, 2))) == [0, 2] and taken(lease(0))[0].startswith("leased by web since ")
    assert taken(lease(0, kind="share"))[0].startswith("shared by web")
    assert taken(lease(0), own=("/root", "web")) == {} and taken(lease(0, kind="released")) == {}


def test_by_nodes(containers: list[Seen]) -> None:
    containers.append(Seen(NOBODY, 1, frozenset([(195, 1), (1, 3)])))
    assert taken() == {1: f"a container that is just ending has it (process {NOBODY})"}
    assert taken(policy=LeasePolicy(ignore=("*",))) == {}


def test_a_released_container_does_not_count(containers: list[Seen]) -> None:
    own = posix.stat("/proc/self/ns/mnt").st_ino
    containers.append(Seen(os.getpid(), own, frozenset([(195, 1)])))
    assert list(taken()) == [1]
    assert taken(lease(1, kind="released", pid=os.getpid())) == {}
    other = lease(1, kind="released", pid=os.getpid(), pid_namespace=own_pid_namespace() + 1)
    assert list(taken(other)) == [1], "that number is another process here"


def test_by_processes(containers: list[Seen]) -> None:
    computing = replace(FOUND, computing=((UNITS[1].key, os.getpid()), (UNITS[2].key, NOBODY)))
    assert list(taken(found=computing)) == [1]
    assert taken(lease(1), found=computing)[1].startswith("leased by")


def test_a_process_that_could_not_be_looked_for_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_there(os.getpid()) and not is_there(NOBODY)

    class Posix:
        @staticmethod
        def stat(_: str) -> None:
            raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(module, "posix", Posix)
    assert is_there(NOBODY)


def test_names_of_others_are_harmless() -> None:
    text = describe_lease(lease(0, name="\x1b[2J", id="a\nb", engine="\u202eDocker"))
    assert text.isprintable() and "\\x1b[2J (a\\nb) of \\u202eDocker since " in text


def test_a_gpu_off_the_bus(tmp_path: Path) -> None:
    make(tmp_path, Options(gpus=3))
    (tmp_path / "sys/bus/pci/devices" / bus_id(1) / "config").write_bytes(b"\xff" * 64)
    found = survey({"GPURUN_SYSROOT": str(tmp_path)}, ask=False)
    assert [bool(unit.unwell) for unit in found.units] == [False, True, False]
