"""What the API server knows of this node's pods: UIDs, and the labels that a site wants to see at its metrics."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

from gpurun.errors import GpurunError, UsageError
from gpurun.kubernetes.pod_resources import Owner
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.kubernetes.api import Api

_INVALID = re.compile(r"[^a-zA-Z0-9_]", re.ASCII)
#: Labels that samples have anyway; no pod's label takes their place.
_TAKEN = frozenset(
    "gpu UUID pci_bus_id device modelName Hostname container namespace pod pod_uid".split()
    + "GPU_I_PROFILE GPU_I_ID job instance".split()
)


def allowlist(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """The *patterns* of ``--pod-labels``, compiled.  Raises :class:`UsageError` for one that is not a regular expression."""
    made = []
    for pattern in patterns:
        try:
            made.append(re.compile(pattern))
        except (re.error, RecursionError, OverflowError) as e:
            raise UsageError(f'--pod-labels: "{pattern}" is not a regular expression: {e}') from None
    return tuple(made)


def labels_of(pod: dict[str, Any], uid: bool, allowed: tuple[re.Pattern[str], ...]) -> tuple[tuple[str, str], ...]:
    """``pod_uid`` if *uid*, and the labels of *pod* of whose keys a part is matched by one of *allowed*.

    Returns (name, value) of each.  As in dcgm-exporter, what may not stand in a name is ``_``; a name that is taken, or
    would be of two labels, is of the first.
    """
    metadata = pod.get("metadata") or {}
    found = {"pod_uid": str(metadata.get("uid") or "")} if uid else {}
    for key, value in sorted((metadata.get("labels") or {}).items()):
        if any(pattern.search(key) for pattern in allowed):
            name = _INVALID.sub("_", key)
            name = f"_{name}" if name[:1].isdigit() else name
            if name not in _TAKEN and not name.startswith("DCGM_"):
                found.setdefault(name, str(value))
    return tuple(found.items())


class Pods:
    """The pods of the *node*, followed by one watch.  For any thread; *say* is called once for each failure."""

    def __init__(
        self, api: Api, node: str, uid: bool, allowed: tuple[re.Pattern[str], ...], say: Callable[[str], None]
    ) -> None:
        self._api, self._node, self._say = api, node, say
        self._uid, self._allowed = uid, allowed
        self._lock = threading.Lock()
        self._labels: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {}
        self._stop = threading.Event()

    def look(self) -> None:
        """Read them once.  Raises :class:`GpurunError`."""
        self._begun(self._api.listed("pods", self._selector)[0])

    def start(self) -> None:
        """Follow them until :meth:`stop`."""
        from gpurun.kubernetes.follow import follow

        def on_error(error: GpurunError) -> None:
            self._say(str(error))

        arguments = (self._api, "pods", self._selector, self._stop, self._begun, self._on_change, on_error)
        threading.Thread(target=follow, args=arguments, name="pods", daemon=True).start()

    def stop(self) -> None:
        """Follow them no longer."""
        self._stop.set()

    def known(self, owners: Iterable[Owner]) -> tuple[Owner, ...]:
        """*owners* with what is known of their pods."""
        with self._lock:
            return tuple([replace(one, more=self._labels.get((one.namespace, one.pod), ())) for one in owners])

    @property
    def _selector(self) -> str:
        return f"spec.nodeName={self._node}"

    def _begun(self, pods: list[dict[str, Any]]) -> None:
        made = {_key(pod): labels_of(pod, self._uid, self._allowed) for pod in pods}
        with self._lock:
            self._labels = made

    def _on_change(self, kind: str, pod: dict[str, Any]) -> None:
        made = labels_of(pod, self._uid, self._allowed)
        with self._lock:
            if kind == "DELETED":
                self._labels.pop(_key(pod), None)
            else:
                self._labels[_key(pod)] = made


def _key(pod: dict[str, Any]) -> tuple[str, str]:
    return str(pod["metadata"].get("namespace", "")), str(pod["metadata"]["name"])
