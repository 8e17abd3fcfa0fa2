"""ResourceSlices of this node kept as they are to be, whoever else writes to them."""

from __future__ import annotations

from typing import Any

from gpurun import log
from gpurun.kubernetes.api import RESOURCE_GROUP, Api, ApiError
from gpurun.kubernetes.dra.slices import DRIVER, slices
from gpurun.kubernetes.node import NodeGpus

_PLURAL = "resourceslices"
Object = dict[str, Any]


class Publisher:
    """The slices of the node *name* in one API server.  One thread calls :meth:`publish`."""

    def __init__(self, api: Api, name: str) -> None:
        self._api, self._name = api, name
        self.version = api.resource_version_of_group()
        self._minor = api.minor_version()
        self._counting = True
        self._owner: list[Object] = []
        #: What the server has made of what we wrote last: name → (specification, its resourceVersion).
        self._written: dict[str, tuple[Object, str]] = {}

    def publish(self, node: NodeGpus, ill: dict[str, str]) -> bool:
        """Have the slices say what *node* has but for the UUIDs *ill*; whether something was to be done.

        Raises :class:`ApiError`; of two writers at the same time one has to come again (status 409).
        """
        wanted = slices(node, self._name, ill, self._minor, self._counting)
        try:
            return self._write(wanted)
        except ApiError as e:
            if self._counting and e.status in (400, 422) and any("sharedCounters" in spec for spec in wanted):
                log.warning(f"this API server does not support counters: MIG devices are published without them ({e})")
                self._counting = False
                return self.publish(node, ill)
            raise

    def published(self) -> tuple[list[Object], str]:
        """Our slices, and the resource version at which they were so.  Returns (slices, resource version)."""
        selector = f"spec.nodeName={self._name},spec.driver={DRIVER}"
        found, version = self._api.list(RESOURCE_GROUP, self.version, _PLURAL, selector)
        # A server that does not know the selector says all.
        mine = [s for s in found if s["spec"].get("nodeName") == self._name and s["spec"].get("driver") == DRIVER]
        return sorted(mine, key=lambda s: str(s["metadata"]["name"])), version

    def watched(self) -> str:
        """What to watch for changes, as :meth:`Api.changes` takes it."""
        return f"{RESOURCE_GROUP}/{self.version}/{_PLURAL}"

    def _write(self, wanted: list[Object]) -> bool:
        found, _ = self.published()
        there = {str(one["metadata"]["name"]): one for one in found}
        names = [f"{self._name}-{DRIVER}-{number}" for number in range(len(wanted))]
        if set(there) == set(names) and all(self._is(there[name], spec) for name, spec in zip(names, wanted, strict=True)):
            return False
        generation = 1 + max([int(one["spec"]["pool"].get("generation", 0)) for one in found], default=0)
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
        for name in set(there) - set(names):
            self._api.delete(RESOURCE_GROUP, self.version, _PLURAL, name)
        count = sum(len(spec.get("devices", ())) for spec in wanted)
        log.info(f"{len(wanted)} ResourceSlices published, generation {generation}: {count} devices")
        return True

    def _is(self, there: Object, spec: Object) -> bool:
        """Whether the slice *there* is *spec*: word for word, or as the server has written what we gave it."""
        written = self._written.get(str(there["metadata"]["name"]))
        if written == (spec, str(there["metadata"]["resourceVersion"])):
            return True
        pool = {key: value for key, value in there["spec"]["pool"].items() if key != "generation"}
        return bool(there["spec"] | {"pool": pool} == spec)

    def _owners(self) -> list[Object]:
        """The node owns its slices: they go with it."""
        if not self._owner:
            node = self._api.node(self._name)
            reference = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": node["metadata"]["uid"]}
            self._owner = [reference | {"controller": True}]
        return self._owner
