"""The NodeFeature object of a node, by which Node Feature Discovery's master learns labels without its worker.

The API is nfd.k8s-sigs.io/v1alpha1; the object's name is that of GPU feature discovery, whose place it takes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from gpurun import log
from gpurun.errors import GpurunError, UsageError
from gpurun.kubernetes.labels import patch_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.kubernetes.api import Api

_GROUP, _VERSION, _PLURAL = "nfd.k8s-sigs.io", "v1alpha1", "nodefeatures"
_NODE = "nfd.node.kubernetes.io/node-name"
_STAMP = "nvidia.com/gfd.timestamp"
#: Looks after which the object is asked for though the labels are as they were: another client may have changed it.
_ASK_AGAIN = 10

Object = dict[str, Any]


def name_of(node: str) -> str:
    """The name of the object of *node*."""
    return f"nvidia-features-for-{node}"


def document(node: str, namespace: str, labels: Mapping[str, str], owner: Object | None) -> Object:
    """The object of *node* with *labels*; it goes when its *owner*, the DaemonSet, goes."""
    metadata: Object = {"name": name_of(node), "namespace": namespace, "labels": {_NODE: node}}
    if owner is not None:
        of = owner["metadata"]
        metadata["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": str(of["name"]), "uid": str(of["uid"])}
        ]
    features: Object = {"flags": {}, "attributes": {}, "instances": {}}
    return {
        "apiVersion": f"{_GROUP}/{_VERSION}", "kind": "NodeFeature", "metadata": metadata,
        "spec": {"features": features, "labels": dict(sorted(labels.items()))},
    }  # fmt: skip


def changed(old: Object, new: Object) -> Object | None:
    """*new* to be written in the place of *old*; None where that says the same, but for the time."""

    def said(one: Object) -> Object:
        labels = {name: text for name, text in (one["spec"].get("labels") or {}).items() if name != _STAMP}
        metadata = one["metadata"]
        return {
            "labels": labels, "node": (metadata.get("labels") or {}).get(_NODE),
            "owners": metadata.get("ownerReferences") or [],
        }  # fmt: skip

    if said(old) == said(new):
        return None
    return new | {"metadata": new["metadata"] | {"resourceVersion": old["metadata"]["resourceVersion"]}}


class NodeFeature:
    """The object of the node *name*, beside the *daemonset* (``NAMESPACE/NAME``) that owns it, else in *namespace*.

    Raises :class:`UsageError` where neither says in which namespace it is.
    """

    def __init__(self, api: Api, name: str, daemonset: str, namespace: str) -> None:
        of, slash, self._daemonset = daemonset.partition("/")
        if daemonset and not (of and slash and self._daemonset):
            raise UsageError(f'--daemonset: "{daemonset}" is not NAMESPACE/NAME')
        self._namespace = of or namespace
        if not self._namespace:
            raise UsageError("a NodeFeature object needs --daemonset, or --namespace, for its namespace")
        self._api, self._name = api, name
        self._written: tuple[dict[str, str], tuple[str, ...]] | None = None
        self._looks = 0

    def set(self, wanted: dict[str, str], makers: Sequence[str]) -> None:
        """Have the object say *wanted*, the labels of the GPUs of *makers*; what it says of other makers stays.

        Raises :class:`GpurunError`.
        """
        from gpurun.kubernetes.api import ApiError

        meant = {name: text for name, text in wanted.items() if name != _STAMP}, tuple(makers)
        self._looks -= 1
        if self._looks > 0 and meant == self._written:
            return
        self._looks, self._written = 0, None
        owner = (
            self._api.get_namespaced("apps", "v1", "daemonsets", self._namespace, self._daemonset)
            if self._daemonset
            else None
        )
        try:
            old: Object | None = self._api.get_namespaced(_GROUP, _VERSION, _PLURAL, self._namespace, name_of(self._name))
        except ApiError as e:
            if e.status != 404:
                raise
            old = None
        if old is None:
            self._create(document(self._name, self._namespace, wanted, owner))
        else:
            labels = dict(old.get("spec", {}).get("labels") or {})
            changes = patch_of(labels, wanted, makers)
            kept = {name: text for name, text in (labels | changes).items() if text is not None}
            new = changed(old | {"spec": old.get("spec") or {}}, document(self._name, self._namespace, kept, owner))
            if new is not None:
                self._api.replace(_GROUP, _VERSION, _PLURAL, new)
                log.info(f"{self._namespace}/{name_of(self._name)}: {len(changes)} labels changed")
        self._looks, self._written = random.randint(_ASK_AGAIN // 2, _ASK_AGAIN), meant

    def _create(self, body: Object) -> None:
        from gpurun.kubernetes.api import ApiError

        try:
            self._api.create(_GROUP, _VERSION, _PLURAL, body)
        except ApiError as e:
            if e.status == 404:
                raise GpurunError(
                    f"{e}: the cluster has no namespace {self._namespace}, or no NodeFeature objects: install Node Feature "
                    "Discovery 0.14 or newer, with its NodeFeature API on"
                ) from None
            raise
        log.info(f"{self._namespace}/{body['metadata']['name']}: made, with {len(body['spec']['labels'])} labels")
