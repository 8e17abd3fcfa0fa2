"""kubernetes labels: which GPUs this node has, as labels, once or whenever they change."""

from __future__ import annotations

import os
import threading
import time
from math import inf

from gpurun import log
from gpurun.commands.kubernetes_options import config_source, host_of, interval, node_name, probed, until_signal
from gpurun.errors import GpurunError, UsageError
from gpurun.invocation import Invocation
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.extra import need
from gpurun.kubernetes.labels import FEATURES_FILE, labels_of, machine_type, patch_of, write_features
from gpurun.kubernetes.node import read_node

_INTERVAL_S = 60.0


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
    output = output or env.get("GFD_OUTPUT_FILE", "") or FEATURES_FILE
    stop, wake = threading.Event(), threading.Event()
    source = config_source(invocation, env, wake.set)
    name = ""
    if patch:
        need("kubernetes")
        name = node_name(invocation)

    def end() -> None:
        stop.set()
        wake.set()

    until_signal(end)
    given = interval(invocation, 0.0)
    every = given or _INTERVAL_S
    with probed(invocation) as probes:
        while True:
            try:
                config = source()
                every = given or config.sleep_interval or _INTERVAL_S
                made = _made(invocation, config)
                if patch:
                    _patch(invocation.option("kubeconfig"), name, made)
                else:
                    write_features(output, made)
                probes.tell("")
            except GpurunError as e:
                if invocation.flag("oneshot"):
                    raise
                probes.tell(str(e))
                log.warning(str(e))
            probes.beat(every)
            if invocation.flag("oneshot"):
                break
            wake.wait(None if every == inf else every)
            if stop.is_set():
                break
            wake.clear()
    if not patch and not invocation.flag("oneshot") and output != "-" and os.path.isfile(output):
        os.unlink(output)  # as GPU feature discovery does: a node whose labels nobody keeps has none
    return 0


def _made(invocation: Invocation, config: PluginConfig) -> dict[str, str]:
    host = host_of(invocation, config.driver_root, config.dev_root)
    node = read_node(host.roots)
    if node.nvml:
        log.warning(node.nvml)
    stamp = None if config.no_timestamp or invocation.flag("no-timestamp") else int(time.time())
    return labels_of(node, config, machine_type(f"{host.roots.sysroot}{config.machine_type_file}"), stamp)


def _patch(kubeconfig: str, name: str, wanted: dict[str, str]) -> None:
    from gpurun.kubernetes.api import connect

    api = connect(kubeconfig)
    now = api.node(name)["metadata"].get("labels") or {}
    changes = patch_of(now, wanted)
    if set(changes) - {"nvidia.com/gfd.timestamp"}:
        api.label_node(name, changes)
        log.info(f"node {name}: {len(changes)} labels changed")
