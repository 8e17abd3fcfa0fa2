"""The file of what the DRA driver has prepared: what another version of gpurun finds in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpurun.kubernetes.dra.checkpoint import STARTED, Checkpoint, PreparedClaim, PreparedDevice, _digest
from gpurun.record import replace

DEVICE = PreparedDevice("gpus", "node-1", "gpu-0", "GPU-0", "GPU-0", ("nvidia.com/gpu=0",))
CLAIM = PreparedClaim("uid-1", "default", "one", STARTED, "boot", (DEVICE,))
SHARED = PreparedClaim("uid-2", "default", "two", STARTED, "boot", (replace(DEVICE, share="part"),))


@pytest.mark.parametrize(("claims", "version", "members"), [((CLAIM,), 1, 0), ((SHARED,), 2, 1), ((CLAIM, SHARED), 2, 1)])
def test_only_a_file_with_shares_is_closed_to_an_older_gpurun(
    tmp_path: Path, claims: tuple[PreparedClaim, ...], version: int, members: int
) -> None:
    kept = Checkpoint(str(tmp_path / "checkpoint.json"))
    for claim in claims:
        kept.put(claim)
    document = json.loads(Path(kept.path).read_text())
    devices = [device for claim in document["claims"].values() for device in claim["devices"]]
    assert (document["version"], sum("share" in device for device in devices)) == (version, members)
    assert Checkpoint(kept.path).claims == {claim.uid: claim for claim in claims}
    for claim in claims:
        kept.remove(claim.uid)
    assert json.loads(Path(kept.path).read_text())["version"] == 1


def test_the_file_of_an_older_gpurun_is_read(tmp_path: Path) -> None:
    """Before there were shares no device had the member, and for a while each had one without anything in it."""
    path = tmp_path / "checkpoint.json"
    Checkpoint(str(path)).put(CLAIM)
    document = json.loads(path.read_text())
    document["claims"]["uid-1"]["devices"][0]["share"] = ""
    document["digest"] = _digest(document["claims"])
    path.write_text(json.dumps(document))
    assert Checkpoint(str(path)).claims == {"uid-1": CLAIM}
