"""ResourceSlices of this node kept as they are to be, whoever else writes to them.

What the API server has is known by a watch of only this node's slices, so it is asked for nothing while nothing changes.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

from gpurun import log
from gpurun.errors import GpurunError
from gpurun.kubernetes.api import RESOURCE_GROUP, Api, ApiError
from gpurun.kubernetes.dra.slices import DRIVER, Pool, unhealthy
from gpurun.kubernetes.follow import follow
from gpurun.kubernetes.pauses import Pauses

_PLURAL = "resourceslices"
_MULTIPLE = "allowMultipleAllocations"
#: Fields of devices → the first minor version whose server has them, if they are not switched off.
_FIELDS = {"taints": 36, _MULTIPLE: 34}
#: What it means that a server has no such field.
_WITHOUT = {
    "taints": "has no taints of devices: a GPU that is not well is not published",
    _MULTIPLE: "does not give a device to several claims: GPUs are published without shares of their memory",
}
Object = dict[str, Any]


class Publisher:
    """The slices of *driver* for the node *name* in one API server.

    One thread calls :meth:`publish`, another :meth:`follow`.
    """

    def __init__(self, api: Api, name: str, driver: str = DRIVER) -> None:
        self._api, self._name, self._driver = api, name, driver
        self.version = api.resource_version_of_group()
        self._minor = api.minor_version()
        self._counting = True
        #: Whether the server keeps a field of devices; not there: not tried yet.
        self._kept: dict[str, bool] = {}
        self._owner: list[Object] = []
        self._lock = threading.Lock()
        #: Our slices as the server has them, by name; None until it has said so.  *_failure* is why it has not, or why a
        #: write failed; nothing is written again before *_not_before* (monotonic).
        self._there: dict[str, Object] | None = None
        self._failure: GpurunError | None = None
        self._pauses, self._not_before = Pauses(), 0.0
        #: What the server has made of what we wrote last: name → (specification, its resourceVersion).
        self._written: dict[str, tuple[Object, str]] = {}

    def publish(self, pool: Pool) -> bool:
        """Have the slices say what *pool* has; whether something was to be done.

        Raises :class:`GpurunError`: the server has refused, cannot be asked, or rests from the last failure.
        """
        with self._lock:
            there = None if self._there is None else dict(self._there)
            if self._failure is not None and (there is None or time.monotonic() < self._not_before):
                raise self._failure
        if there is None:
            return False
        try:
            tainting, sharing = bool(pool.ill) and self._keeps("taints"), pool.shares and self._keeps(_MULTIPLE)
            wanted = pool.slices(self._name, self._minor, self._counting, tainting, sharing)
            written = self._write(there, wanted)
        except ApiError as e:
            if self._counting and e.status in (400, 422) and pool.counts:
                log.warning(f"this API server does not support counters: MIG devices are published without them ({e})")
                self._counting = False
                return self.publish(pool)
            if e.status in (404, 409):  # another client was faster
                self._begun(self._api.listed(self._watched(), self._selector())[0])
            with self._lock:
                self._failure, self._not_before = e, time.monotonic() + self._pauses.next()
            raise
        with self._lock:
            self._failure = None
        self._pauses.good()
        return written

    def follow(self, stop: threading.Event, changed: Callable[[], None]) -> None:
        """Know what the server has, until *stop* is set, and call *changed* whenever another client has changed it."""

        def begun(found: list[Object]) -> None:
            self._begun(found)
            changed()

        def on_change(kind: str, one: Object) -> None:
            if self._on_change(kind, one):
                changed()

        follow(self._api, self._watched(), self._selector(), stop, begun, on_change, self._on_error)

    def _begun(self, found: list[Object]) -> None:
        # A server that does not know the selector says all.
        mine = [s for s in found if s["spec"].get("nodeName") == self._name and s["spec"].get("driver") == self._driver]
        with self._lock:
            self._there = {str(one["metadata"]["name"]): one for one in mine}
            self._failure = None

    def _on_change(self, kind: str, one: Object) -> bool:
        """Take a change in; whether it was not known, as our own are."""
        name, version = str(one["metadata"]["name"]), int(one["metadata"]["resourceVersion"])
        with self._lock:
            if self._there is None:
                return False
            known = self._there.get(name)
            if known is not None and int(known["metadata"]["resourceVersion"]) >= version:
                return False
            if kind != "DELETED":
                self._there[name] = one
                return True
            return self._there.pop(name, None) is not None

    def _on_error(self, error: GpurunError) -> None:
        with self._lock:
            if self._there is None:
                self._failure = error

    def _selector(self) -> str:
        return f"spec.nodeName={self._name},spec.driver={self._driver}"

    def _watched(self) -> str:
        return f"{RESOURCE_GROUP}/{self.version}/{_PLURAL}"

    def _write(self, there: dict[str, Object], wanted: list[Object]) -> bool:
        names = [f"{self._name}-{self._driver}-{number}" for number in range(len(wanted))]
        if set(there) == set(names) and all(self._is(there[name], spec) for name, spec in zip(names, wanted, strict=True)):
            return False
        generation = 1 + max([int(one["spec"]["pool"].get("generation", 0)) for one in there.values()], default=0)
        for name, spec in zip(names, wanted, strict=True):
            metadata: Object = {"name": name, "ownerReferences": self._owners()}
            body = {
                "apiVersion": f"{RESOURCE_GROUP}/{self.version}", "kind": "ResourceSlice", "metadata": metadata,
                "spec": spec | {"pool": spec["pool"] | {"generation": generation}},
            }  # fmt: skip
            if name in there:
                metadata["resourceVersion"] = there[name]["metadata"]["resourceVersion"]
                made = self._api.replace(RESOURCE_GROUP, self.version, _PLURAL, body)
            else:
                made = self._api.create(RESOURCE_GROUP, self.version, _PLURAL, body)
            self._written[name] = spec, str(made["metadata"]["resourceVersion"])
            self._on_change("MODIFIED", made)
        for name in set(there) - set(names):
            self._api.delete(RESOURCE_GROUP, self.version, _PLURAL, name)
        count = sum(len(spec.get("devices", ())) for spec in wanted)
        log.info(f"{self._driver}: {len(wanted)} ResourceSlices published, generation {generation}: {count} devices")
        return True

    def _is(self, there: Object, spec: Object) -> bool:
        """Whether the slice *there* is *spec*: word for word, or as the server has written what we gave it."""
        written = self._written.get(str(there["metadata"]["name"]))
        if written == (spec, str(there["metadata"]["resourceVersion"])):
            return True
        found = copy.deepcopy(there["spec"])
        del found["pool"]["generation"]
        for taint in [taint for device in found.get("devices") or () for taint in device.get("taints") or ()]:
            taint.pop("timeAdded", None)
        return bool(found == spec)

    def _keeps(self, field: str) -> bool:
        """Whether the server keeps the *field* of devices: one that has it switched off leaves it out without a word."""
        if field not in self._kept:
            self._kept[field] = self._minor >= _FIELDS[field] and bool(self._try_fields()[field])
            if not self._kept[field]:
                log.warning(f"this API server {_WITHOUT[field]}")
        return self._kept[field]

    def _try_fields(self) -> Object:
        """A device with all of these fields, as the server would keep it."""
        one: Object = {"name": "a", "taints": [unhealthy(self._driver)], _MULTIPLE: True}
        pool = {"name": self._name, "generation": 0, "resourceSliceCount": 1}
        body = {
            "apiVersion": f"{RESOURCE_GROUP}/{self.version}", "kind": "ResourceSlice",
            "metadata": {"name": f"{self._name}-{self._driver}-try"},
            "spec": {"driver": self._driver, "nodeName": self._name, "pool": pool, "devices": [one]},
        }  # fmt: skip
        made = self._api.create(RESOURCE_GROUP, self.version, _PLURAL, body, dry_run=True)
        return dict.fromkeys(_FIELDS) | dict(made["spec"]["devices"][0])

    def _owners(self) -> list[Object]:
        """The node owns its slices: they go with it."""
        if not self._owner:
            node = self._api.node(self._name)
            reference = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": node["metadata"]["uid"]}
            self._owner = [reference | {"controller": True}]
        return self._owner
