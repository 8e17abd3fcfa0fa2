"""Giving GPUs: what is noted, who comes first, how long is waited, and what is said; on made-up hosts."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpurun.errors import GpuError, GpurunError
from gpurun.gpu.device import GpuDevice, Survey
from gpurun.gpu.leases import allocator, container_nodes, queue, shares
from gpurun.gpu.leases.allocator import Requester
from gpurun.gpu.leases.lease import Lease
from gpurun.gpu.leases.names import Known
from gpurun.gpu.leases.policy import LeasePolicy
from gpurun.gpu.leases.store import Store
from gpurun.gpu.leases.turns import Want
from gpurun.gpu.request.free import read_free_request
from gpurun.gpu.request.share import Share
from gpurun.linux import procfs
from gpurun.record import replace
from tests.deadline import within
from tests.gpu.devices import nvidia

GIB = 1 << 30
UNITS = tuple(nvidia(n, model="Tesla T4" if n < 2 else "NVIDIA A100", memory=80 * GIB, nodes=((195, n),)) for n in range(6))
ANYTHING = LeasePolicy()
Ask = Callable[..., tuple[str, ...]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"{tmp_path}/leases")


@pytest.fixture
def ask(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """``ask("free:2", "web")``: the names of what the container gets; it is made by this process, and never has an init."""
    monkeypatch.setattr(allocator, "survey", lambda *_, **__: Survey(UNITS))
    monkeypatch.setattr(container_nodes, "containers_with_nodes", lambda *_: ())

    def lease(text: str, name: str = "web", policy: LeasePolicy = ANYTHING, **more: object) -> tuple[str, ...]:
        requester = Requester(name, "/root", Known(name), source="NVIDIA_VISIBLE_DEVICES", **more)  # type: ignore[arg-type]
        return allocator.allocate(read_free_request(text, ""), {}, policy, store, requester)[1]

    with within(120):
        yield lease


@pytest.fixture
def other() -> Iterator[tuple[int, int]]:
    """(pid, start time) of another process that lives."""
    with subprocess.Popen(["sleep", "600"]) as process:
        found = procfs.stat(process.pid)
        assert found is not None
        yield process.pid, found[1]
        process.kill()


def wait_of(store: Store, process: tuple[int, int], count: int, *indices: int) -> None:
    with store:
        queue.draw(store.path, *process, Want(frozenset([UNITS[n].key for n in indices]), count))


def test_it_is_noted(ask: Ask, store: Store) -> None:
    assert ask("free:2;product=A100*") == ("GPU-2", "GPU-3")
    (lease,) = store.leases()
    assert (lease.id, lease.name, lease.request, lease.maker) == ("web", "web", "free:2;product=A100*", os.getpid())
    assert ask("free:2;product=A100*", "db") == ("GPU-4", "GPU-5")
    with pytest.raises(GpuError, match="1 GPU wanted, 0 of 6 free") as error:
        ask("free;product=A100*", "more")
    assert "GPU 0, 1: it is a Tesla T4; GPU 2, 3: leased by web since" in str(error.value)


def test_who_waits_for_others_holds_nobody_up(ask: Ask, store: Store, other: tuple[int, int]) -> None:
    ask("free;product=Tesla*", "t4")
    wait_of(store, other, 2, 0, 1)
    assert ask("free:4") == ("GPU-2", "GPU-3", "GPU-4", "GPU-5")
    with pytest.raises(GpuError, match=rf"1 of 6 free and others came first \(process {other[0]} waits\)"):
        ask("free", "more")


def test_the_queue_ends_with_the_process_that_waits(ask: Ask, store: Store) -> None:
    wait_of(store, (1 << 22, 1), 6, *range(6))
    assert len(ask("free:6")) == 6


def test_nobody_is_left_in_the_queue(ask: Ask, store: Store) -> None:
    ask("free:6")
    with pytest.raises(GpuError, match=r"0 of 6 free after 0\.2 s: GPU 0, 1, 2, 3, 4, 5: leased by web"):
        ask("free", "late", LeasePolicy(wait=0.2))
    assert queue.tickets(store.path) == ()


def test_what_can_never_be_had_is_not_waited_for(ask: Ask, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(*_: object) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr(allocator, "_await_one", waits)
    ask("free", "web")
    for text in ("free:7", "free;product=B200", "free:3;product=Tesla*"):
        with pytest.raises(GpuError) as error:
            ask(text, "late", LeasePolicy(wait=60))
        assert " after " not in str(error.value)


def test_one_who_waits_gets_it_when_the_other_ends(ask: Ask, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ask("free:6")
    (held,) = store.leases()
    watched: list[tuple[tuple[int, int], ...]] = []

    def ends(processes: tuple[tuple[int, int], ...], _: float) -> None:
        watched.append(processes)
        with store:
            store.remove(held)

    monkeypatch.setattr(allocator, "_await_one", ends)
    assert ask("free", "late", LeasePolicy(wait=60)) == ("GPU-0",)
    assert watched == [((held.maker, held.maker_start),)] and queue.tickets(store.path) == ()


def test_a_holder_that_is_not_to_be_seen_is_no_busy_loop(ask: Ask, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ask("free:6")
    (held,) = store.leases()
    with store:
        store.save(replace(held, pid_namespace=1, pid=1 << 22, start_time=1))
    looks = 0
    attempt = allocator._attempt

    def counted(*arguments: object) -> object:
        nonlocal looks
        looks += 1
        return attempt(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(allocator, "_attempt", counted)
    with pytest.raises(GpuError, match="0 of 6 free after"):
        ask("free", "late", LeasePolicy(wait=0.5))
    assert looks <= 0.5 / allocator._SOON_S + 2


def test_limits_say_how_many_are_leased(ask: Ask) -> None:
    ask("free:2", "web", LeasePolicy(per_user=3))
    with pytest.raises(GpuError, match="the site lets user 0 lease 3 GPUs at a time, 2 are leased now"):
        ask("free:2", "db", LeasePolicy(per_user=3))
    assert len(ask("free:2", "web", LeasePolicy(per_user=3))) == 2, "its own does not count"


def test_limits_of_containers_with_the_same_label(ask: Ask, store: Store) -> None:
    policy = LeasePolicy(per_label=(("team", 3),))

    def labelled(name: str, **labels: str) -> tuple[str, ...]:
        known = Known(name, labels=tuple(labels.items()))
        requester = Requester(name, "/root", known, source="NVIDIA_VISIBLE_DEVICES")
        return allocator.allocate(read_free_request("free:2", ""), {}, policy, store, requester)[1]

    labelled("one", team="blue")
    with pytest.raises(GpuError, match="the site lets containers with team=blue lease 3 GPUs at a time, 2 are leased now"):
        labelled("two", team="blue")
    assert len(labelled("two", team="red")) == len(labelled("three", tier="blue")) == 2


@pytest.mark.parametrize(
    ("shared", "nodes", "name", "said"),
    [
        ("warn", (0, 4), "db", r"^process.env NVIDIA_VISIBLE_DEVICES: GPU 0: leased by web .*: both use it$"),
        ("refuse", (0, 4), "db", r"GPU 0: leased by web .*: this site does not share leased GPUs: ask for free:2"),
        ("refuse", (4, 5), "db", r"^$"),  # nobody has those
        ("refuse", (0, 4), "web", r"^$"),  # its own
        ("refuse", (77,), "db", r"^$"),  # no GPU's
    ],
)
def test_gpus_that_are_named_while_they_are_leased(
    ask: Ask, store: Store, shared: str, nodes: tuple[int, ...], name: str, said: str
) -> None:
    ask("free:2;product=Tesla*")
    numbers = tuple([(195, node) for node in nodes])
    try:
        text, made = allocator.record_named(numbers, {}, LeasePolicy(shared=shared), store, Requester(name, "/root"))
    except GpuError as error:
        text, made = str(error), None
    assert re.search(said, text), text
    expected = [] if 77 in nodes or "does not share" in said else [f"GPU-{node}" for node in nodes]
    assert [unit.name for unit in made.units] if made else expected == []
    assert [one.kind for one in store.leases() if one.id == name and one.kind == "named"] == ["named"] * bool(expected)


@pytest.mark.parametrize(
    ("units", "text", "said"),
    [
        ((), "free", "this host has no GPU"),
        (UNITS[:1], "free:2;profile=1g.10gb", "2 MIG devices of profile 1g.10gb wanted, this host has no MIG device"),
        (UNITS[:1], "free:2", "2 GPUs wanted, this host has 1"),
        (UNITS[2:4], "free:2;nvlink", "2 GPUs wanted, 2 of 2 free, but not connected by NVLink"),
    ],
)
def test_why_there_is_none(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, units: tuple[GpuDevice, ...], text: str, said: str
) -> None:
    monkeypatch.setattr(allocator, "survey", lambda *_, **__: Survey(units))
    with pytest.raises(GpuError, match=f"NVIDIA_VISIBLE_DEVICES '{re.escape(text)}': {re.escape(said)}"):
        ask(text)


def test_another_users_gpurun_was_as_fast(ask: Ask, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What two have noted at the same moment both give up, and try again."""
    made: list[Lease] = []
    save = store.save

    def crossed(lease: Lease) -> None:
        save(lease)
        made.append(lease)

    monkeypatch.setattr(store, "save", crossed)
    monkeypatch.setattr(store, "foreign_leases", lambda: tuple(made) if len(made) == 1 else ())
    assert ask("free") == ("GPU-0",) and len(made) == 2 and len(store.own_leases()) == 1


@pytest.mark.parametrize("fails", ["save", "own_leases"])
def test_nothing_is_left_of_an_error(ask: Ask, store: Store, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    def full(*_: object) -> None:
        raise GpurunError("write a lease of GPUs: no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(store, fails, full)
        with pytest.raises(GpurunError, match="no space left"):
            ask("free", "late", LeasePolicy(wait=5))
    assert store.leases() == () and queue.tickets(store.path) == ()
    with store:
        pass  # nor is it locked


@pytest.mark.parametrize("note", [True, False])
def test_no_share_of_a_gpu_that_cannot_work(store: Store, monkeypatch: pytest.MonkeyPatch, note: bool) -> None:
    ill = replace(UNITS[0], unwell="it has fallen off the bus")
    monkeypatch.setattr(shares, "survey", lambda *_, **__: Survey((ill,)))
    monkeypatch.setattr(container_nodes, "containers_with_nodes", lambda *_: ())
    share, requester = Share(GIB, source="annotations"), Requester("web", "/root")
    with pytest.raises(GpuError, match=r"GPU 0 has no room for a share of .*: not well: it has fallen off the bus"):
        shares.share_named(frozenset(ill.numbers), share, {}, ANYTHING, store, requester, note)
    with pytest.raises(GpuError, match="GPU 0: not well: it has fallen off the bus"):
        shares.share_free(read_free_request("free", ""), share, {}, ANYTHING, store, requester, note)
