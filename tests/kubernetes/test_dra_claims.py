"""The DRA driver's claims over the kubelet's sockets: prepared, refused, taken back, over restarts and boots."""

from __future__ import annotations

import threading

from gpurun.cdi.files import read_registry
from gpurun.kubernetes.dra.checkpoint import Checkpoint
from gpurun.kubernetes.protocols import dra_v1_pb2 as v1
from tests.kubernetes.cluster import FIRST, SECOND, Cluster, own_server
from tests.kubernetes.dra.test_claim import config, opaque
from tests.needs_nodes import needs_nodes
from tests.simdriver import minor

pytestmark = needs_nodes


def devices_of(made: Cluster) -> set[str]:
    registry = read_registry((str(made.cdi_dir),))
    assert not registry.errors
    return set(registry.devices)


@own_server
def test_prepare_and_unprepare(started: Cluster) -> None:
    claim = started.allocate("c", FIRST, SECOND)
    answer = started.prepare(claim)[claim.uid]
    assert not answer.error
    assert [(list(d.request_names), d.pool_name, d.device_name) for d in answer.devices] == [
        (["r0"], "node-1", FIRST),
        (["r1"], "node-1", SECOND),
    ]
    names = {name for device in answer.devices for name in device.cdi_device_ids}
    assert names == {f"k8s.gpu.nvidia.com/claim={claim.uid}-{d}" for d in (FIRST, SECOND)} == devices_of(started)
    edits = read_registry((str(started.cdi_dir),)).files[0].spec
    first = next(d for d in edits.devices if d.name.endswith(FIRST))
    assert f"/dev/nvidia{minor(0, 2)}" in [node.path for node in first.edits.device_nodes]
    assert started.prepare(claim)[claim.uid] == answer  # the kubelet asks again
    assert started.prepare_v1beta1(claim).devices[0].cdi_device_ids == answer.devices[0].cdi_device_ids
    for _ in range(2):
        assert started.unprepare(claim)[claim.uid].error == ""
        assert not devices_of(started)
    assert Checkpoint(str(started.checkpoint)).claims == {}


@own_server
def test_what_cannot_be_prepared_says_why_and_leaves_nothing(started: Cluster) -> None:
    held, second, gone = (
        started.allocate("held", FIRST),
        started.allocate("second", FIRST),
        started.allocate("gone", "gpu-7"),
    )
    foreign = v1.Claim(namespace="default", uid="0-0", name="held")
    nowhere = v1.Claim(namespace="default", uid="1-1", name="nowhere")
    odd = started.allocate("odd", SECOND, config=[opaque(config({"strategy": "Luck"}))])
    assert not started.prepare(held)[held.uid].error
    answers = started.prepare(second, gone, foreign, nowhere, odd)
    for claim, said in (
        (second, "gpu-1 is still prepared for claim default/held"),
        (gone, "there is no device gpu-7 on this node"),
        (foreign, "has another UID now"),
        (nowhere, '"nowhere" not found (404)'),
        (odd, "'Luck' is unknown"),
    ):
        assert said in answers[claim.uid].error and not answers[claim.uid].devices
    assert len(devices_of(started)) == 1 and list(Checkpoint(str(started.checkpoint)).claims) == [held.uid]
    started.unprepare(held)
    assert not started.prepare(second)[second.uid].error
    # A claim that is gone, and nobody has said so, holds nothing up.
    assert started.server is not None
    started.server.remove("resourceclaims", "second", "default")
    third = started.allocate("third", FIRST)
    assert not started.prepare(third)[third.uid].error and list(Checkpoint(str(started.checkpoint)).claims) == [third.uid]


@own_server
def test_admin_access_and_shares(started: Cluster) -> None:
    held, admin = started.allocate("held", FIRST), started.allocate("admin", FIRST, adminAccess=True)
    assert not started.prepare(held)[held.uid].error and not started.prepare(admin)[admin.uid].error
    one, other = [started.allocate(name, SECOND, shareID=name) for name in ("share-1", "share-2")]
    answers = started.prepare(one, other)
    assert [answers[c.uid].devices[0].share_id for c in (one, other)] == ["share-1", "share-2"]


@own_server
def test_an_api_server_that_is_down(started: Cluster) -> None:
    assert started.server is not None
    claim = started.allocate("c", FIRST)
    started.server.down = True
    assert "the server is down" in started.prepare(claim)[claim.uid].error
    started.server.down = False
    assert not started.prepare(claim)[claim.uid].error
    started.server.down = True
    assert not started.unprepare(claim)[claim.uid].error  # what is known here needs nobody


@own_server
def test_a_restart_knows_its_claims_and_cleans_up(started: Cluster) -> None:
    assert started.server is not None
    stays, goes, replaced = (
        started.allocate("stays", FIRST),
        started.allocate("goes", SECOND),
        started.allocate("other", SECOND, adminAccess=True),
    )
    answers = started.prepare(stays, goes, replaced)
    assert not any(answer.error for answer in answers.values())
    started.stop()
    started.server.remove("resourceclaims", "goes", "default")
    started.server.remove("resourceclaims", "other", "default")
    started.allocate("other", SECOND)
    (started.cdi_dir / "k8s.gpu.nvidia.com-claim_stray.json").write_text("{}")
    (started.cdi_dir / "others.json").write_text("{}")
    started.start()
    started.until(lambda: list(Checkpoint(str(started.checkpoint)).claims) == [stays.uid])
    assert {path.name for path in started.cdi_dir.iterdir()} == {f"k8s.gpu.nvidia.com-claim_{stays.uid}.json", "others.json"}
    assert started.prepare(stays)[stays.uid] == answers[stays.uid]


@own_server
def test_after_a_boot(started: Cluster) -> None:
    """/run is empty, and the checkpoint is of another boot."""
    claim = started.allocate("c", FIRST)
    answer = started.prepare(claim)[claim.uid]
    (file,) = started.cdi_dir.iterdir()
    content = file.read_bytes()
    file.unlink()
    assert started.prepare(claim)[claim.uid] == answer and file.read_bytes() == content
    file.write_bytes(content[:50])
    assert started.prepare(claim)[claim.uid] == answer and file.read_bytes() == content


@own_server
def test_many_claims_at_once(started: Cluster) -> None:
    claims = [started.allocate(f"c{i}", FIRST if i % 2 else SECOND, adminAccess=True) for i in range(24)]
    errors: list[str] = []

    def work(claim: v1.Claim) -> None:
        for _ in range(2):
            errors.append(started.prepare(claim)[claim.uid].error)
        errors.append(started.unprepare(claim)[claim.uid].error)

    threads = [threading.Thread(target=work, args=(claim,)) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(errors) == {""} and not devices_of(started) and not Checkpoint(str(started.checkpoint)).claims
