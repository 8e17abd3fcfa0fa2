"""What the driver has prepared, on disk: written before anything is done, so that a killed driver can go on or undo it.

A JSON file with a digest of its content.  A claim is ``started`` from before its first step until after its last one, then
``completed``.  It is written by rename and synced: a power cut leaves the old content or the new.
"""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from typing import Any

from gpurun.errors import GpurunError, strerror_lower
from gpurun.linux.files import write_atomically
from gpurun.record import Record, replace

#: The document's versions: the second has shares of GPUs, which a gpurun that does not know of them would not take back.
#: What has none is written as the first, so that an older gpurun on the same node can go on with it.
PLAIN, WITH_SHARES = 1, 2
STARTED, COMPLETED = "started", "completed"


class PreparedDevice(Record):
    """One device of a prepared claim: what the kubelet is answered, and what takes it back."""

    request: str
    pool: str
    device: str
    uuid: str
    gpu_uuid: str
    cdi: tuple[str, ...]
    admin: bool = False
    share: str = ""
    strategy: str = ""


class PreparedClaim(Record):
    """One claim; *boot* is the boot of the kernel in which it was prepared: what is not on disk is gone after another."""

    uid: str
    namespace: str
    name: str
    state: str
    boot: str
    devices: tuple[PreparedDevice, ...] = ()


class Checkpoint:
    """The file *path*.  Not thread-safe.  Raises :class:`GpurunError` when what is there cannot be read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.claims: dict[str, PreparedClaim] = {}
        try:
            with open(path, "rb") as file:
                self.claims = _read(file.read(), path)
        except FileNotFoundError:
            pass  # nothing has been prepared yet
        except OSError as e:
            raise GpurunError(f"{path}: {strerror_lower(e.errno or 0)}") from None

    def put(self, claim: PreparedClaim) -> None:
        """Write *claim* down; when it returns, it is on the disk."""
        self._write(self.claims | {claim.uid: claim})

    def remove(self, uid: str) -> None:
        """Forget the claim *uid*."""
        self._write({key: claim for key, claim in self.claims.items() if key != uid})

    def _write(self, claims: dict[str, PreparedClaim]) -> None:
        body = {uid: _plain(claim) for uid, claim in sorted(claims.items())}
        shared = any(device.share for claim in claims.values() for device in claim.devices)
        document = {"version": WITH_SHARES if shared else PLAIN, "digest": _digest(body), "claims": body}
        try:
            os.makedirs(os.path.dirname(self.path), 0o750, exist_ok=True)
            write_atomically(self.path, json.dumps(document, indent=1).encode() + b"\n", 0o600, durable=True)
        except OSError as e:
            raise GpurunError(f"write {self.path}: {strerror_lower(e.errno or 0)}") from None
        self.claims = claims


def _plain(claim: PreparedClaim) -> dict[str, Any]:
    made = {name: getattr(claim, name) for name in PreparedClaim._fields}
    made["devices"] = [
        {name: getattr(device, name) for name in PreparedDevice._fields} | {"cdi": list(device.cdi)}
        for device in claim.devices
    ]
    for device in made["devices"]:
        if not device["share"]:
            del device["share"]
    return made


def _read(data: bytes, path: str) -> dict[str, PreparedClaim]:
    remedy = "the claims of this node's pods are in it: put a backup there, or drain the node, remove the file and restart"
    try:
        document = json.loads(data)
        if document["version"] not in (PLAIN, WITH_SHARES):
            raise GpurunError(f"{path}: version {document['version']} is of a newer gpurun, which must be used here")
        if document["digest"] != _digest(document["claims"]):
            raise GpurunError(f"{path} is damaged: {remedy}")
        found = {}
        for uid, claim in document["claims"].items():
            devices = [PreparedDevice(**(device | {"cdi": tuple(device["cdi"])})) for device in claim["devices"]]
            found[uid] = PreparedClaim(**(claim | {"devices": tuple(devices)}))
        return found
    except (ValueError, KeyError, TypeError, AttributeError):
        raise GpurunError(f"{path} cannot be read: {remedy}") from None


def _digest(body: object) -> str:
    return blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()


def as_completed(claim: PreparedClaim) -> PreparedClaim:
    """*claim*, with all of it done."""
    return replace(claim, state=COMPLETED)
