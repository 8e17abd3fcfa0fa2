"""The GPUs of a node divided as a label of it says, as NVIDIA's MIG manager for Kubernetes does it.

``nvidia.com/mig.config`` names a configuration: of a file of mig-parted's, or where there is no file one of those that the
GPUs themselves can have.  ``nvidia.com/mig.config.state`` says what came of it: ``pending``, ``rebooting``, ``success`` or
``failed``, with an event that says why.  What else looks at the GPUs is sent away from the node meanwhile by labels:
gpurun's own parts, and those of NVIDIA's operator that the node has.  Pods that have GPUs are waited for, not ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from gpurun import log
from gpurun.errors import GpurunError, clean
from gpurun.gpu.nvidia.mig.apply import MigHost, MigPending, apply_config
from gpurun.gpu.nvidia.mig.config import MigEntry, load, read_configs, select
from gpurun.gpu.nvidia.mig.export import as_yaml
from gpurun.gpu.nvidia.mig.generate import generate_config, silent, untold
from gpurun.gpu.nvidia.mig.plan import plan_config
from gpurun.gpu.nvidia.mig.state import MigGpu, read_state
from gpurun.kubernetes.api import Api
from gpurun.kubernetes.config import PREFIX
from gpurun.kubernetes.makers import NVIDIA
from gpurun.kubernetes.pod_resources import owners
from gpurun.record import Record

CONFIG, STATE, PAUSED = f"{PREFIX}/mig.config", f"{PREFIX}/mig.config.state", f"{PREFIX}/gpurun.paused"
DEPLOY = f"{PREFIX}/gpu.deploy."
#: Parts of NVIDIA's operator that have the GPUs open.
OPERATORS = tuple(f"{DEPLOY}{part}" for part in (
    "device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm", "nvsm", "client",
))  # fmt: skip
AWAY = "paused-for-mig-change"
PENDING, REBOOTING, SUCCESS, FAILED = "pending", "rebooting", "success", "failed"
#: gpurun's parts that look at the GPUs, by the label app.kubernetes.io/component of their pods.
PARTS = ("device-plugin", "dra-driver", "labels", "metrics")
#: Seconds to wait for what uses the GPUs, as NVIDIA's does.
WAIT_S = 300.0
_LOOK_S = 1.0
#: Where configurations come from without a file, for error messages.
_HERE = "what the GPUs of this node can be divided into"


class MigPlaces(Record):
    """*file* is the configuration file, empty for the configurations that the GPUs themselves can have.

    *namespace* is that of gpurun's pods, *pod_resources* the kubelet's socket, *wait_s* how many seconds to wait for what
    uses the GPUs.
    """

    file: str
    namespace: str
    pod_resources: str
    wait_s: float = WAIT_S


class MigManager:
    """Divides the GPUs of the node *node*; *host* says where they are.

    *reboot* reboots the node (None: it is not rebooted), or raises :class:`GpurunError`.
    """

    def __init__(
        self, api: Api, node: str, host: Callable[[], MigHost], places: MigPlaces, reboot: Callable[[], None] | None = None
    ) -> None:
        self._api, self._node, self._host, self._places, self._reboot = api, node, host, places, reboot

    def apply(self, name: str, stop: threading.Event) -> str:
        """Have the node's GPUs be as the configuration *name* says; the state that the node is labelled with.

        Empty where *stop* was set before it came so far.  Raises :class:`GpurunError` where the API server cannot be asked.
        """
        before = str(self._labels().get(STATE, ""))
        try:
            ended = self._apply(name, stop)
        except MigPending as e:
            if self._reboot is not None and before != REBOOTING:
                self._report(name, REBOOTING, f"{e}; the node is rebooted for it")
                try:
                    self._reboot()
                except GpurunError as why:
                    self._back()
                    return self._report(name, FAILED, f"{e}; {why}")
                return REBOOTING
            self._back()
            return self._report(name, FAILED, str(e))
        except GpurunError as e:
            self._back()
            return self._report(name, FAILED, str(e))
        self._back()
        return self._report(name, SUCCESS, "") if ended else ""

    def _apply(self, name: str, stop: threading.Event) -> bool:
        host = self._host()
        gpus = read_state(host.library)
        entries = self._entries(gpus, name)
        if not plan_config(gpus, entries):
            apply_config(host, name, entries)  # takes the record of a change away that is over
            return True
        labels = self._labels()
        changes: dict[str, str | None] = {STATE: PENDING, PAUSED: AWAY}
        changes |= {key: AWAY for key in OPERATORS if labels.get(key, "false") != "false"}
        self._api.label_node(self._node, changes)
        deadline, told = time.monotonic() + self._places.wait_s, ""
        while why := self._in_the_way():
            if time.monotonic() >= deadline:
                raise GpurunError(f"within {self._places.wait_s:g} s the GPUs have not become free: {why}")
            if why != told:
                log.info(f"waiting: {why}")
                told = why
            if stop.wait(_LOOK_S):
                return False
        apply_config(host, name, entries)
        return True

    def _entries(self, gpus: tuple[MigGpu, ...], name: str) -> tuple[MigEntry, ...]:
        if self._places.file:
            return select(load(self._places.file), name, self._places.file)[1]
        configs = read_configs(as_yaml(generate_config(gpus)).encode(), _HERE)
        if name not in configs and silent(gpus):
            raise GpurunError(untold(gpus))
        return select(configs, name, _HERE)[1]

    def _in_the_way(self) -> str:
        """What has the GPUs, or may get them; empty: nothing."""
        for owner in owners(self._places.pod_resources):
            if owner.vendor == NVIDIA:  # a pod's devices of another maker do not matter
                return f"pod {owner.namespace}/{owner.pod} has {owner.device}"
        for pod in self._api.pods_of(self._places.namespace, self._node):
            component = (pod["metadata"].get("labels") or {}).get("app.kubernetes.io/component")
            if component in PARTS and (pod["metadata"].get("labels") or {}).get("app.kubernetes.io/name") == "gpurun":
                return f"pod {self._places.namespace}/{pod['metadata']['name']} still looks at them"
        status: Mapping[str, Mapping[str, str]] = self._api.node(self._node).get("status") or {}
        for resource, amount in (status.get("allocatable") or {}).items():
            if resource.startswith(f"{PREFIX}/") and str(amount) != "0":
                return f"the kubelet still offers {resource} ({amount})"
        return ""

    def _back(self) -> None:
        """What was sent away may come back; also what a manager that was killed had sent away."""
        labels = self._labels()
        changes: dict[str, str | None] = {key: "true" for key in OPERATORS if labels.get(key) == AWAY}
        if PAUSED in labels:
            changes[PAUSED] = None
        if changes:
            self._api.label_node(self._node, changes)

    def _report(self, name: str, state: str, why: str) -> str:
        said = f'MIG configuration "{clean(name)}": {why or state}'
        (log.warning if why else log.info)(said)
        if self._labels().get(STATE) != state:
            self._api.label_node(self._node, {STATE: state})
        if why:
            try:
                self._api.tell(self._node, "MigConfig", said)
            except GpurunError as e:
                log.warning(f"the event was not taken: {e}")
        return state

    def _labels(self) -> Mapping[str, str]:
        labels: Mapping[str, str] = self._api.node(self._node)["metadata"].get("labels") or {}
        return labels
