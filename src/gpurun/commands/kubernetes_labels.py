"""kubernetes labels: which GPUs this node has, as labels, once or whenever they change."""

from __future__ import annotations

import os
import threading
import time
from math import inf

from gpurun import log
from gpurun.commands.kubernetes_labels_where import Where
from gpurun.commands.kubernetes_options import (
    config_source,
    ended_by_late_gpus,
    host_of,
    interval,
    serving_probes,
    until_signal,
    vendors_of,
)
from gpurun.errors import GpurunError
from gpurun.gpu.offers import none_of_any
from gpurun.gpu.vendors import NAMES
from gpurun.invocation import Invocation
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.labels import labels_of, machine_type
from gpurun.kubernetes.makers import NVIDIA, gpus_of, makers_of
from gpurun.kubernetes.node import read_node
from gpurun.kubernetes.pauses import Pauses

_INTERVAL_S = 60.0


def labels(invocation: Invocation) -> int:
    """Write the labels until a signal ends it, or once; the exit code.

    Raises :class:`UsageError` for options that exclude each other.
    """
    env = dict(os.environ)
    where = Where(invocation, env)
    makers = vendors_of(invocation)
    stop, wake = threading.Event(), threading.Event()
    source = config_source(invocation, env, wake.set)
    pauses, said = Pauses(), False

    def end() -> None:
        stop.set()
        wake.set()

    until_signal(end)
    given = interval(invocation, 0.0)
    every = given or _INTERVAL_S
    with serving_probes(invocation) as probes, ended_by_late_gpus(host_of(invocation), end):
        once = invocation.flag("oneshot")
        while True:
            try:
                config = source()
                once = once or config.oneshot
                every = given or config.sleep_interval or _INTERVAL_S
                made = _made(invocation, config, makers)
                where.set(config, *made)
                if not made[0] and not said and makers == NAMES:
                    said = True
                    log.warning(f"no label: {none_of_any({'GPURUN_SYSROOT': host_of(invocation).roots.sysroot})}")
                probes.tell("")
                rests = every
                pauses.good()
            except GpurunError as e:
                if once:
                    raise
                probes.tell(str(e))
                log.warning(str(e))
                rests = min(every, pauses.next())
            probes.beat(rests)
            if once:
                break
            wake.wait(None if rests == inf else rests)
            if stop.is_set():
                break
            wake.clear()
    if not once:
        where.end()
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
