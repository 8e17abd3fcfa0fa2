"""Limits of the memory of AMD's GPUs in real containers, on a simulated dmem controller, against what can go wrong with it.

No kernel that the tests run on counts a GPU's memory: see :mod:`tests.simcards.dmem`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.gpu.leases.lease import Leased
from gpurun.gpu.leases.store import new_lease
from gpurun.record import to_plain
from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import ENVIRONMENT, Container, Runtime
from tests.native.waiting import wait_until
from tests.needs_nodes import require_nodes
from tests.simcards import GIB, Host, amd
from tests.simcards.dmem import Dmem

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

#: Of the first GPU, which is the second in AMD's order.
ADDRESS = amd.MI210[0][0]
REGION = f"drm/{ADDRESS}/vram"
USER = 54321
Ask = Callable[[str], Bundle]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = amd.mi210(tmp_path / "host", count=2)
    require_nodes(made.real_nodes)
    made.write("sys/fs/cgroup/dmem.capacity", "\n".join([f"drm/{pci}/vram {64 * GIB}" for pci, _ in amd.MI210[:2]]))
    return made


@pytest.fixture
def env(host: Host) -> dict[str, str]:
    return ENVIRONMENT | host.env


@pytest.fixture
def dmem(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dmem:
    made = Dmem(tmp_path)
    monkeypatch.setattr(runtime, "path", str(made.program))
    return made


@pytest.fixture
def ask(bundle: MakeBundle) -> Ask:
    """A bundle that asks for a share of the GPU."""

    def of(memory: str, gpu: str = ADDRESS) -> Bundle:
        made = bundle().args("sleep", "1000")
        made.process["env"] += [f"AMD_VISIBLE_DEVICES={gpu}", f"GPURUN_GPU_MEMORY={memory}"]
        return made

    return of


def leased(runtime: Runtime, env: dict[str, str]) -> list[dict[str, Any]]:
    done = runtime("gpu", "leases", "--json", env=env)
    assert done.rc == 0, done
    found: list[dict[str, Any]] = json.loads(done.out)["leases"]
    return found


def test_it_is_there_before_the_program_starts(runtime: Runtime, dmem: Dmem, ask: Ask, env: dict[str, str]) -> None:
    container = runtime.create(ask("8GiB"), env=env)
    assert dmem.limits(container.id) == [f"{REGION} {8 * GIB}"] and container.state()["status"] == "created"
    assert [(one["id"], one["memory"]) for one in leased(runtime, env)] == [(container.id, 8 * GIB)]


def test_all_shares_of_a_gpu_are_no_more_than_it_has(runtime: Runtime, dmem: Dmem, ask: Ask, env: dict[str, str]) -> None:
    first = runtime.create(ask("40GiB"), env=env)
    refused = runtime.refused(ask("40GiB"), env=env)
    assert "has no room for a share of 40 GiB" in refused and first.id in refused
    assert runtime.create(ask("24GiB"), env=env).result.rc == 0, "the rest of it"
    assert first.delete("--force").rc == 0
    assert runtime.create(ask("40GiB"), env=env).result.rc == 0


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (Dmem.goes, 'cannot set process.env GPURUN_GPU_MEMORY: writing "{} {}" to dmem.max'),
        (Dmem.knows_no_region, 'cannot set process.env GPURUN_GPU_MEMORY: writing "{} {}" to dmem.max'),
    ],
)
def test_a_controller_that_goes_meanwhile(
    runtime: Runtime, dmem: Dmem, ask: Ask, env: dict[str, str], happens: Callable[[Dmem], None], says: str
) -> None:
    """Planned with it, and made without: the container is not, and nothing of it is left."""
    happens(dmem)
    text = runtime.refused(ask("8GiB"), env=env)
    assert says.format(REGION, 8 * GIB) in text and text.count("\n") == 1, text
    assert leased(runtime, env) == []


def test_a_create_that_is_killed_when_the_limit_is_set(
    runtime: Runtime, dmem: Dmem, ask: Ask, env: dict[str, str], host: Host
) -> None:
    dmem.hold()
    container_id, made = runtime.new_id(), ask("48GiB")
    runtime.prepare(made, container_id)
    process = runtime.popen("create", "--bundle", str(made.directory), container_id, files=runtime.new_files(), env=env)
    wait_until(lambda: dmem.limits(container_id), meanwhile=lambda: None if process.poll() is None else "create has ended")
    assert [(one["id"], one["memory"]) for one in leased(runtime, env)] == [(container_id, 48 * GIB)]
    assert "has no room" in runtime.refused(ask("48GiB"), env=env), "it counts until it has ended"
    process.kill()
    process.wait()
    assert runtime("delete", "--force", container_id, env=env).rc == 0
    assert leased(runtime, env) == []
    (dmem.place / "hold").unlink()
    assert dmem.limits(runtime.create(ask("64GiB"), env=env).id) == [f"{REGION} {64 * GIB}"]


def in_the_name_of(user: int, host: Host, **change: Any) -> None:
    """A file of that user's that says that a live container of theirs has all of the GPU's memory."""
    directory = host.path / "run/user" / str(user) / "gpurun-leases"
    directory.mkdir(parents=True)
    unit = Leased(ADDRESS, ADDRESS, 1, 128)
    lease = new_lease("theirs", "/run/theirs", (unit,), kind="share", memory=64 * GIB, threads=0)
    plain: dict[str, Any] = {**to_plain(lease), "pid": os.getpid(), **change}
    (directory / lease.file).write_text(json.dumps(plain))
    for path in (directory.parent, directory, directory / lease.file):
        os.chown(path, user, user)


@pytest.mark.parametrize(
    "change",
    [{"memory": -64 * GIB}, {"memory": 1 << 70}, {"memory": "²"}, {"threads": 10**30}, {"kind": "released"}, {"kind": 7}],
    ids=str,
)
def test_what_another_user_writes_of_shares_makes_no_room(
    runtime: Runtime, dmem: Dmem, ask: Ask, env: dict[str, str], host: Host, change: dict[str, Any]
) -> None:
    """A negative amount would let two containers have more than there is; nonsense would let none have any."""
    in_the_name_of(USER, host, **change)
    container: Container = runtime.create(ask("40GiB"), env=env)
    assert dmem.limits(container.id) == [f"{REGION} {40 * GIB}"]
    assert "has no room for a share of 40 GiB" in runtime.refused(ask("40GiB"), env=env)


@pytest.mark.parametrize(
    "memory", ["-1", "0", "17TiB", "99999999999999999999GiB", "9e99", "²GiB", "0x7fffffff", "1GiB\n2GiB"]
)
def test_amounts_that_are_none(runtime: Runtime, dmem: Dmem, ask: Ask, env: dict[str, str], memory: str) -> None:
    text = runtime.refused(ask(memory), env=env)
    assert "GPURUN_GPU_MEMORY" in text and "must be an amount of the GPU's memory" in text and text.count("\n") == 1, text
    assert leased(runtime, env) == []


@pytest.mark.parametrize(
    "capacity",
    [
        f"{REGION} ²\n".encode(),
        f"{REGION} {'9' * 400}\n".encode(),
        f"{REGION} -1\n".encode(),
        f"{REGION} 0\n".encode(),
        f"{REGION}\x1b[2J {64 * GIB}\n".encode(),
        f"{REGION}0 1 {64 * GIB}\n".encode(),
        f"{REGION}/../x {64 * GIB}\n".encode(),
        b"drm/" + ADDRESS.encode() + b"/vram\xff\xfe 64\n",
        b"\0" * 4096,
        f"{REGION}\u2028{REGION} {64 * GIB}\n".encode(),
    ],
    ids=repr,
)
def test_a_region_that_is_none(
    runtime: Runtime, dmem: Dmem, ask: Ask, env: dict[str, str], host: Host, capacity: bytes
) -> None:
    host.write("sys/fs/cgroup/dmem.capacity", capacity)
    text = runtime.refused(ask("8GiB"), env=env)
    assert "nothing limits the memory of AMD GPU" in text and text.count("\n") == 1, text
    assert leased(runtime, env) == []


def test_a_region_that_is_there_twice_counts_once(
    runtime: Runtime, dmem: Dmem, ask: Ask, env: dict[str, str], host: Host
) -> None:
    host.write("sys/fs/cgroup/dmem.capacity", f"{REGION} {64 * GIB}\n{REGION} {64 * GIB}\n")
    assert dmem.limits(runtime.create(ask("8GiB"), env=env).id) == [f"{REGION} {8 * GIB}"]
