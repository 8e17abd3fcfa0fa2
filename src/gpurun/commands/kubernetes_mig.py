"""kubernetes mig-manager: the node's GPUs divided as its label says, whenever that changes, until a signal ends it."""

from __future__ import annotations

import os
import subprocess
import threading

from gpurun import log
from gpurun.commands.kubernetes_options import host_of, node_name, serving_probes, until_signal
from gpurun.errors import GpurunError, clean, program_error_text
from gpurun.gpu.leases.policy import LeasePolicy
from gpurun.gpu.leases.store import Store, directory, other_directories
from gpurun.gpu.nvidia.host.nvml import find_nvml
from gpurun.gpu.nvidia.mig.apply import MigHost
from gpurun.gpu.nvidia.mig.busy import hold_gpus
from gpurun.gpu.nvidia.mig.change_record import DIRECTORY
from gpurun.invocation import Invocation
from gpurun.kubernetes.kubelet import KUBELET_DIR
from gpurun.kubernetes.node_programs import nvidia_smi
from gpurun.kubernetes.pauses import Pauses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gpurun.gpu.nvidia.mig.plan import MigChange

_REBOOT_S = 60.0


def mig_manager(invocation: Invocation) -> int:
    """Divide the GPUs whenever the label names another configuration; the exit code."""
    from gpurun.kubernetes.api import connect
    from gpurun.kubernetes.config_source import NodeLabel
    from gpurun.kubernetes.mig_manager import CONFIG, MigManager, MigPlaces

    path = invocation.option("config-file", os.environ.get("CONFIG_FILE", ""))
    root = invocation.option("host-root").rstrip("/")
    api, node = connect(invocation.option("kubeconfig")), node_name(invocation)
    stop, wake = threading.Event(), threading.Event()
    sockets = f"{invocation.option('kubelet-dir', KUBELET_DIR)}/pod-resources/kubelet.sock"
    places = MigPlaces(path, invocation.option("namespace", "gpurun"), sockets)
    reboot = (lambda: _reboot(root)) if invocation.flag("with-reboot") else None
    manager = MigManager(api, node, lambda: _host(invocation, root), places, reboot)

    def end() -> None:
        stop.set()
        wake.set()

    until_signal(end)
    pauses, tried = Pauses(2.0, 60.0), ""
    with serving_probes(invocation) as probes:
        label: NodeLabel | None = None
        while not stop.is_set():
            wake.clear()
            wait: float | None = 60.0
            try:
                label = label or NodeLabel(api, node, CONFIG, wake.set)
                name = label.value or invocation.option("default-config")
                if name and name != tried:
                    probes.tell(f"the GPUs are being divided as {name} says")
                    if manager.apply(name, stop):
                        tried = name
                probes.tell("")
                pauses.good()
            except GpurunError as e:  # the API server: tried again
                probes.tell(str(e))
                log.warning(str(e))
                wait = pauses.next()
            probes.beat(60.0)
            wake.wait(wait)
    return 0


def _host(invocation: Invocation, root: str) -> MigHost:
    """Where the GPUs are.  Raises :class:`GpurunError` while there is no driver."""
    host = host_of(invocation)
    env = {**os.environ, **({"GPURUN_SYSROOT": root} if root else {})}
    sysroot = env.get("GPURUN_SYSROOT", "")

    def hold(changes: tuple[MigChange, ...]) -> AbstractContextManager[None]:
        path = directory(env)
        return hold_gpus(changes, env, LeasePolicy(), Store(path, other_directories(path, env)))

    # In a pod the node's directory is mounted at its own place, for its root is read-only.
    record = DIRECTORY if root else f"{sysroot}{DIRECTORY}"
    return MigHost(find_nvml(host.roots), record, nvidia_smi(host), hold)


def _reboot(root: str) -> None:
    """Raises :class:`GpurunError` where the node does not."""
    words = ("chroot", root, "reboot") if root else ("reboot",)
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=_REBOOT_S)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise GpurunError(f"the node does not reboot: {program_error_text(e)}") from None
    if done.returncode:
        said = clean(" ".join(done.stderr.decode("utf-8", "replace").split())) or f"exit code {done.returncode}"
        raise GpurunError(f"the node does not reboot: {said}")
