"""kubernetes install-node and uninstall-node: gpurun put on the node that this pod runs on, and taken back."""

from __future__ import annotations

import json
import os
import sys
import threading
from math import inf

from gpurun import log
from gpurun.commands.kubernetes_options import interval, node_name, serving_probes, until_signal
from gpurun.errors import GpurunError, UsageError, strerror_lower
from gpurun.invocation import Invocation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.kubernetes.install.node_setup import NodeSetup

KUBELET_DIR, CDI_DIR = "/var/lib/kubelet", "/var/run/cdi"
#: Seconds between two looks at what could not go yet.
_WAIT_S = 5.0
#: Seconds for which the end of an installer waits for containers that end; its pod may take 240.
_ENDING_S = 40.0
ON_EXIT = ("ask", "remove", "keep")


def install_node(invocation: Invocation) -> int:
    """Install, then wait for a signal and take it back, as ``--on-exit`` says; the exit code.

    Raises :class:`UsageError` for wrong options, :class:`GpurunError` when the node cannot be configured.
    """
    from gpurun.kubernetes.install.host import on_node
    from gpurun.kubernetes.install.steps import install

    on_exit = invocation.option("on-exit", "ask" if invocation.option("daemonset") else "remove")
    if on_exit not in ON_EXIT:
        raise UsageError(f'--on-exit: "{on_exit}" is not one of {", ".join(ON_EXIT)}')
    if on_exit == "ask" and "/" not in invocation.option("daemonset"):
        raise UsageError("--on-exit ask needs --daemonset NAMESPACE/NAME, the DaemonSet to ask about")
    root = invocation.option("host-root").rstrip("/")
    setup = _setup(invocation, root)
    path = invocation.option("program") or _own_program()
    stop = threading.Event()
    until_signal(stop.set)  # one that comes meanwhile waits: what is begun is finished first
    try:
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        raise GpurunError(f"--program {path}: {strerror_lower(e.errno or 0)}") from None
    with serving_probes(invocation) as probes:
        try:
            log.info(on_node(root, lambda: install(setup, source)))
        finally:
            os.close(source)
        if invocation.flag("oneshot"):
            return 0
        ready = invocation.option("ready-file")
        if ready:
            with open(ready, "w", encoding="utf-8"):
                pass
        probes.tell("")
        probes.beat(inf)
        stop.wait()
        if ready:
            os.unlink(ready)
    if on_exit == "keep" or (on_exit == "ask" and not _is_over(invocation)):
        log.info("gpurun stays on this node")
        return 0
    from gpurun.kubernetes.install.steps import remove

    # Those of gpurun's other pods, which are deleted with this one.
    wait_s = _ENDING_S if invocation.option("daemonset") else 0.0
    log.info(on_node(root, lambda: remove(wait_s)))
    return 0


def uninstall_node(invocation: Invocation) -> int:
    """Take back all that gpurun has brought onto the node, with ``--patch-node`` its labels too; the exit code.

    With ``--wait`` what cannot go yet is looked at again, and then a signal is waited for; with ``--daemonset`` only wait
    until the pods of that one have done all.  Raises :class:`GpurunError` when something is left.
    """
    if invocation.option("daemonset"):
        return _wait_for(invocation)
    stop = threading.Event()
    waiting = invocation.flag("wait")
    every = interval(invocation, _WAIT_S)
    with serving_probes(invocation) as probes:
        if waiting:
            until_signal(stop.set)
        said: set[str] = set()
        while True:
            left = _taken_back(invocation)
            if left and not waiting:
                raise GpurunError(f"not everything is gone yet: {'; '.join(left)}")
            for text in set(left) - said:
                log.warning(text)
            said = set(left)
            probes.tell("; ".join(left))
            probes.beat(every if left else inf)
            if not left:
                log.info("nothing of gpurun is left on this node")
            if not waiting or stop.wait(every if left else None):
                return 1 if left else 0


def _wait_for(invocation: Invocation) -> int:
    """Wait until the DaemonSet ``--daemonset``, whose pods do it, is ready on every node; the exit code."""
    from gpurun.kubernetes.extra import need

    namespace, slash, name = invocation.option("daemonset").partition("/")
    if not slash:
        raise UsageError("--daemonset: name it NAMESPACE/NAME")
    need("kubernetes")
    from gpurun.kubernetes.api import connect

    stop = threading.Event()
    until_signal(stop.set)
    api, every, said = connect(invocation.option("kubeconfig")), interval(invocation, _WAIT_S), ""
    while True:
        found = api.get_namespaced("apps", "v1", "daemonsets", namespace, name)
        status = found.get("status") or {}
        wanted, ready = int(status.get("desiredNumberScheduled", 0)), int(status.get("numberReady", 0))
        seen = int(status.get("observedGeneration", 0)) >= int(found["metadata"].get("generation", 1))
        text = f"{namespace}/{name}: done on {ready} of {wanted} nodes"
        if seen and text != said:
            log.info(text)
            said = text
        if seen and ready >= wanted:
            return 0
        if stop.wait(every):
            raise GpurunError(f"{text}; `kubectl -n {namespace} logs daemonset/{name}` says what it waits for")


def _taken_back(invocation: Invocation) -> list[str]:
    """Do what can be done now; why something is left."""
    from gpurun.kubernetes.install.host import on_node
    from gpurun.kubernetes.install.leavings import Leavings
    from gpurun.kubernetes.install.steps import take_back

    places = Leavings(invocation.option("kubelet-dir", KUBELET_DIR), invocation.option("cdi-dir", CDI_DIR))
    left: list[str] = []
    try:
        answer = json.loads(on_node(invocation.option("host-root").rstrip("/"), lambda: take_back(places)))
        for text in answer["done"]:
            log.info(text)
        left += answer["left"]
        if invocation.flag("patch-node"):
            _unlabel(invocation)
    except GpurunError as e:
        if not invocation.flag("wait"):
            raise
        left.append(str(e))
    return left


def _unlabel(invocation: Invocation) -> None:
    """Take the labels of GPUs from the node, but for those that Node Feature Discovery keeps."""
    from gpurun.kubernetes.extra import need

    need("kubernetes")
    from gpurun.kubernetes.api import connect
    from gpurun.kubernetes.labels import labels_left

    api, name = connect(invocation.option("kubeconfig")), node_name(invocation)
    changes = labels_left(api.node(name)["metadata"])
    if changes:
        api.label_node(name, changes)
        log.info(f"node {name}: {len(changes)} labels are gone")


def _setup(invocation: Invocation, root: str) -> NodeSetup:
    from gpurun.kubernetes.install.host import on_node
    from gpurun.kubernetes.install.node_setup import ENGINES, RESTART_MODES, NodeSetup, with_defaults
    from gpurun.kubernetes.install.program import which_engine

    engine = invocation.option("engine") or on_node(root, which_engine)
    if engine not in ENGINES:
        raise UsageError(f'--engine: "{engine}" is not one of {", ".join(ENGINES)}')
    restart = invocation.option("restart-mode")
    if restart and restart not in RESTART_MODES:
        raise UsageError(f'--restart-mode: "{restart}" is not one of {", ".join(RESTART_MODES)}')
    paths = {name: invocation.option(name) for name in ("install-dir", "engine-config", "engine-drop-in", "engine-socket")}
    for name, path in paths.items():
        if path and not path.startswith("/"):
            raise UsageError(f'--{name}: "{path}" is not an absolute path on the node')
    return with_defaults(
        NodeSetup(
            engine,
            directory=paths["install-dir"] or NodeSetup(engine).directory,
            name=invocation.option("runtime-name") or NodeSetup(engine).name,
            config=paths["engine-config"], drop_in=paths["engine-drop-in"], socket=paths["engine-socket"], restart=restart,
            default=invocation.flag("default-runtime"), cdi=not invocation.flag("no-cdi"),
        )
    )  # fmt: skip


def _own_program() -> str:
    """The file of this program, also where one that was compiled for another Python runs in its place."""
    if getattr(sys, "gpurun_bundle", None) is None:
        raise GpurunError(
            "gpurun runs from its source tree, so there is no program file to copy: run "
            "`make build` and add --program build/gpurun"
        )
    return str(sys._xoptions.get("gpurun-called") or os.path.realpath(sys.argv[0]))


def _is_over(invocation: Invocation) -> bool:
    """Whether the DaemonSet that this pod is of is gone or going, or does not mean this node any more.

    A pod that ends because its DaemonSet gets a new version, or because the node is drained, is to leave everything as it
    is; so is one that cannot ask.  Rights that are gone have gone with the DaemonSet.
    """
    from gpurun.kubernetes.extra import need

    namespace, _, name = invocation.option("daemonset").partition("/")
    try:
        need("kubernetes")
        from gpurun.kubernetes.api import connect
        from gpurun.kubernetes.install.over import is_over

        return is_over(connect(invocation.option("kubeconfig")), namespace, name, node_name(invocation))
    except GpurunError as e:
        log.warning(f"cannot ask whether the DaemonSet {namespace}/{name} is being deleted: {e}")
        return False
