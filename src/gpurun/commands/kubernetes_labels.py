"""kubernetes labels: which GPUs this node has, as labels, once or whenever they change."""

from __future__ import annotations

import os
import random
import threading
import time
from math import inf

from gpurun import log
from gpurun.commands.kubernetes_options import (
    config_source,
    ended_by_late_gpus,
    host_of,
    interval,
    node_name,
    probed,
    until_signal,
    vendors_of,
)
from gpurun.errors import GpurunError, UsageError
from gpurun.invocation import Invocation
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.extra import need
from gpurun.kubernetes.labels import (
    FEATURES_FILE,
    labels_of,
    machine_type,
    others_of,
    patch_of,
    write_features,
)
from gpurun.kubernetes.makers import NVIDIA, gpus_of, makers_of
from gpurun.kubernetes.node import read_node
from gpurun.kubernetes.pauses import Pauses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.kubernetes.api import Api
    from gpurun.kubernetes.node_feature import NodeFeature

_INTERVAL_S = 60.0
_STAMP = "nvidia.com/gfd.timestamp"
#: Looks after which the node is asked for its labels though ours are as they were: somebody may have changed them.
_ASK_AGAIN = 10


def labels(invocation: Invocation) -> int:
    """Write the labels until a signal ends it, or once; the exit code.

    Raises :class:`UsageError` for options that exclude each other.
    """
    env = dict(os.environ)
    patch, output = invocation.flag("patch-node"), invocation.option("output-file")
    if patch and output:
        raise UsageError(
            "--patch-node and --output-file exclude each other: label the node, or write a file for Node Feature Discovery"
        )
    feature = invocation.flag("use-node-feature-api")
    if feature and (patch or output):
        raise UsageError(
            "--use-node-feature-api excludes --patch-node and --output-file: Node Feature Discovery writes the labels"
        )
    makers = vendors_of(invocation)
    output = output or env.get("GFD_OUTPUT_FILE", "") or FEATURES_FILE
    stop, wake = threading.Event(), threading.Event()
    source = config_source(invocation, env, wake.set)
    node: NodeLabels | NodeFeature | None = None
    if patch or feature:
        need("kubernetes")
        from gpurun.kubernetes.api import connect
        from gpurun.kubernetes.node_feature import NodeFeature

        api, name = connect(invocation.option("kubeconfig")), node_name(invocation)
        daemonset, namespace = invocation.option("daemonset"), invocation.option("namespace")
        node = NodeFeature(api, name, daemonset, namespace) if feature else NodeLabels(api, name)
    pauses = Pauses()

    def end() -> None:
        stop.set()
        wake.set()

    until_signal(end)
    given = interval(invocation, 0.0)
    every = given or _INTERVAL_S
    with probed(invocation) as probes, ended_by_late_gpus(host_of(invocation), end):
        while True:
            try:
                config = source()
                every = given or config.sleep_interval or _INTERVAL_S
                made, told = _made(invocation, config, makers)
                if node is not None:
                    node.set(made, told)
                else:
                    write_features(output, made)
                probes.tell("")
                rests = every
                pauses.good()
            except GpurunError as e:
                if invocation.flag("oneshot"):
                    raise
                probes.tell(str(e))
                log.warning(str(e))
                rests = min(every, pauses.next())
            probes.beat(rests)
            if invocation.flag("oneshot"):
                break
            wake.wait(None if rests == inf else rests)
            if stop.is_set():
                break
            wake.clear()
    if node is None and not invocation.flag("oneshot") and output != "-" and os.path.isfile(output):
        os.unlink(output)  # as GPU feature discovery does: a node whose labels nobody keeps has none
    return 0


def _made(invocation: Invocation, config: PluginConfig, makers: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """(the labels of this node's GPUs, the names of the makers that they tell of).

    A maker whose GPUs cannot be looked at is none of these, and its labels stay as they are.  Raises :class:`GpurunError`
    where that is so of all of them.
    """
    host = host_of(invocation, config.driver_root, config.dev_root)
    found: dict[str, str] = {}
    told: list[str] = []
    problem: GpurunError | None = None
    if NVIDIA in makers:
        node = read_node(host.roots)
        if node.nvml:
            log.warning(node.nvml)
        stamp = None if config.no_timestamp or invocation.flag("no-timestamp") else int(time.time())
        found = labels_of(node, config, machine_type(f"{host.roots.sysroot}{config.machine_type_file}"), stamp)
        told.append(NVIDIA)
    for row in makers_of(makers):
        try:
            found |= dict(gpus_of(row, host).labels)
            told.append(row.name)
        except GpurunError as e:
            problem = e
            log.warning(str(e))
    if problem is not None and not told:
        raise problem
    return found, tuple(told)


class NodeLabels:
    """The labels of the node *name* in the API server."""

    def __init__(self, api: Api, name: str) -> None:
        self._api, self._name = api, name
        self._written: dict[str, str] = {}
        self._looks = 0

    def set(self, wanted: dict[str, str], makers: tuple[str, ...]) -> None:
        """Have the node carry *wanted*, the labels of the GPUs of *makers*: asked for only after a change, and now and then.

        Raises :class:`GpurunError`.
        """
        meant = {name: text for name, text in wanted.items() if name != _STAMP}
        self._looks -= 1
        if self._looks > 0 and meant == self._written:
            return
        self._looks, self._written = 0, {}
        metadata = self._api.node(self._name)["metadata"]
        changes = patch_of(metadata.get("labels") or {}, wanted, makers, others_of(metadata))
        if set(changes) - {_STAMP}:
            self._api.label_node(self._name, changes)
            log.info(f"node {self._name}: {len(changes)} labels changed")
        self._looks, self._written = random.randint(_ASK_AGAIN // 2, _ASK_AGAIN), meant
