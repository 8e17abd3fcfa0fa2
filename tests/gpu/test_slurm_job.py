"""GPUs of AMD and Intel that the rules of a Slurm job's cgroup keep from the caller: they are not its to give."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.gpu.amd.host import amd_gpus
from gpurun.gpu.intel.host import intel_gpus
from gpurun.gpu.leases import allocator
from gpurun.gpu.leases.policy import LeasePolicy
from gpurun.gpu.leases.shares import share_free
from gpurun.gpu.leases.store import Store
from gpurun.gpu.request.free import read_free_request
from gpurun.gpu.request.share import read_share
from gpurun.gpu.resolve import Inquiry, gpu_edits
from tests.cgroup.conftest import Spawn, base, call_without, spawn, tree  # noqa: F401
from tests.needs_nodes import require_nodes
from tests.simcards import RENDER, Host, amd, intel

USER = 4711
#: Of the variable AMD_VISIBLE_DEVICES, and of that for all makers.
VALUES = ("AMD=all", "AMD=0", "AMD=1", "GPURUN=all", "GPURUN=amd:0", "GPURUN=amd:1", "GPURUN=intel:1")


@pytest.fixture
def host() -> Iterator[Host]:
    """Two of AMD's GPUs and two of Intel's, which any user may look at: pytest's own directories are root's alone."""
    with tempfile.TemporaryDirectory(prefix="gpurun-slurm.", dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        made = amd.mi210(Path(directory, "host"), count=2)
        intel.arc(made.path, functions=False, first=40)
        require_nodes(made.real_nodes)
        yield made


def ask(host: Host, value: str) -> list[str] | str:
    """The render nodes that a container gets, or the error."""
    maker, _, words = value.partition("=")
    try:
        made = gpu_edits(Inquiry((f"{maker}_VISIBLE_DEVICES={words}",), {}, False, host.env))
    except GpurunError as e:
        return str(e)
    return sorted([node.path for node in made.device_nodes if "render" in node.path]) if made is not None else []


@pytest.mark.parametrize("user", [0, USER])
def test_all_are_those_of_the_job(
    host: Host,
    base: Path,  # noqa: F811
    spawn: Spawn,  # noqa: F811
    tmp_path: Path,
    user: int,
) -> None:
    """Also where a user may open the nodes as a member of their group, as on most hosts of AMD's GPUs."""
    path = str(host.path)
    first, second = amd_gpus(path)
    cards = intel_gpus(path)
    denied = [gpu.drm.render for gpu in (second, cards[1]) if gpu.drm.render is not None]
    nodes = [os.makedev(node.major, node.minor) for node in denied]
    said = tmp_path / "said"

    def ask_each() -> None:
        answer = open(said, "w")  # noqa: SIM115 # the user may not open it
        if user:
            for value in VALUES:
                ask(host, value)  # imports what the user may not read
            os.setgroups([RENDER])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        with answer:
            json.dump([ask(host, value) for value in VALUES], answer)

    def ask_in(name: str) -> list[list[str] | str]:
        call_without(nodes, base / name, spawn, ask_each)
        return list(json.loads(said.read_text()))

    def render(*gpus: object) -> list[str]:
        return sorted([gpu.drm.render.path for gpu in gpus])  # type: ignore[attr-defined]

    job, elsewhere = ask_in("slurmstepd.scope"), ask_in("other.scope")
    assert elsewhere == [render(*of) for of in ((first, second), (first,), (second,), (first, second, *cards),
                                                (first,), (second,), (cards[1],))]  # fmt: skip
    not_of_it = "the caller's Slurm job may not open it, by the device rules of its cgroup"
    others = [card for card in cards if card is not cards[1]]
    assert job[0] == job[1] == job[4] == render(first)
    assert job[3] == render(first, *others)
    for refused, name in ((job[2], second.key), (job[5], second.key), (job[6], cards[1].key)):
        assert isinstance(refused, str) and name in refused and not_of_it in refused, refused


def test_free_gpus_are_those_of_the_job(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are not waited for either: nobody's end makes them the job's."""
    first, second = amd_gpus(str(host.path))
    assert first.drm.render is not None
    closed = frozenset([first.drm.render.host_path])
    monkeypatch.setattr(allocator, "closed_by_job", closed.intersection)
    monkeypatch.setattr("gpurun.gpu.leases.container_nodes.containers_with_nodes", lambda granted: ())  # of other tests

    def chosen(words: str) -> allocator.Choice:
        request = read_free_request(words, "AMD_VISIBLE_DEVICES", "amd")
        requester = allocator.Requester("", "", source="AMD_VISIBLE_DEVICES")
        return allocator.preview(request, host.env, LeasePolicy(), Store(str(tmp_path / "leases")), requester)

    assert [unit.key for unit in chosen("free").chosen] == [second.key]
    refusal = "2 GPUs wanted, 1 of 2 free: GPU 0: the caller's Slurm job may not open it"
    with pytest.raises(GpurunError, match=refusal):
        chosen("free:2")
    assert [one.waiting for one in chosen("free").verdicts] == [False, False]


def test_a_share_of_a_free_gpu_is_of_one_of_the_job(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    first, second = amd_gpus(str(host.path))
    nodes = [gpu.drm.render.host_path for gpu in (first, second) if gpu.drm.render is not None]
    closed = {nodes[0]}
    monkeypatch.setattr(allocator, "closed_by_job", lambda paths: frozenset(closed).intersection(paths))
    monkeypatch.setattr("gpurun.gpu.leases.container_nodes.containers_with_nodes", lambda granted: ())  # of other tests
    share = read_share(("GPURUN_GPU_MEMORY=1GiB",), {})
    assert share is not None

    def chosen() -> str:
        request = read_free_request("free", "AMD_VISIBLE_DEVICES", "amd")
        requester = allocator.Requester("", "", source="AMD_VISIBLE_DEVICES")
        store = Store(str(tmp_path / "leases"))
        return share_free(request, share, host.env, LeasePolicy(), store, requester, note=False).unit.key

    assert chosen() == second.key
    closed.add(nodes[1])
    with pytest.raises(
        GpurunError, match=r"no GPU has room for a share of .*GPU 0, 1: the caller's Slurm job may not open it"
    ):
        chosen()
