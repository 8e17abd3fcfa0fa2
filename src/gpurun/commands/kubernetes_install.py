"""kubernetes install-node and uninstall-node: gpurun put on the node that this pod runs on, and taken back."""

from __future__ import annotations

import os
import sys
import threading
from math import inf

from gpurun import log
from gpurun.commands.kubernetes_options import node_name, probed, until_signal
from gpurun.errors import GpurunError, UsageError, strerror_lower
from gpurun.invocation import Invocation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.kubernetes.install.wish import NodeWish

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
    wish = _wish(invocation, root)
    path = invocation.option("program") or _own_program()
    stop = threading.Event()
    until_signal(stop.set)  # one that comes meanwhile waits: what is begun is finished first
    try:
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        raise GpurunError(f"--program {path}: {strerror_lower(e.errno or 0)}") from None
    with probed(invocation) as probes:
        try:
            log.info(on_node(root, lambda: install(wish, source)))
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
    return uninstall_node(invocation)


def uninstall_node(invocation: Invocation) -> int:
    """Take back what is installed on the node; the exit code."""
    from gpurun.kubernetes.install.host import on_node
    from gpurun.kubernetes.install.steps import remove

    log.info(on_node(invocation.option("host-root").rstrip("/"), remove))
    return 0


def _wish(invocation: Invocation, root: str) -> NodeWish:
    from gpurun.kubernetes.install.host import on_node
    from gpurun.kubernetes.install.program import which_engine
    from gpurun.kubernetes.install.wish import ENGINES, RESTART_MODES, NodeWish, with_defaults

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
        NodeWish(
            engine,
            directory=paths["install-dir"] or NodeWish(engine).directory,
            name=invocation.option("runtime-name") or NodeWish(engine).name,
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
