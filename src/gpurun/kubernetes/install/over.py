"""Whether the pod that has to end is the last of its DaemonSet on this node, or the next one is on its way."""

from __future__ import annotations

from gpurun.kubernetes.api import Api, ApiError

_GONE = (401, 403, 404)


def is_over(api: Api, namespace: str, name: str, node: str) -> bool:
    """Whether the DaemonSet is gone or going, or its nodeSelector does not name *node* (any more).

    Its rights are deleted with it, so a refusal says the same.  Raises :class:`ApiError` when there is no answer.
    """
    try:
        found = api.get_namespaced("apps", "v1", "daemonsets", namespace, name)
        if found["metadata"].get("deletionTimestamp"):
            return True
        selector = found["spec"]["template"]["spec"].get("nodeSelector") or {}
        labels = (api.node(node)["metadata"].get("labels") or {}) if selector else {}
        return any(labels.get(key) != value for key, value in selector.items())
    except ApiError as e:
        if e.status in _GONE:
            return True
        raise
