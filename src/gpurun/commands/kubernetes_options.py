"""What the options of the commands for clusters say, and how such a command is ended."""

from __future__ import annotations

import _thread
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gpurun.commands.cdi_generate import hook_program
from gpurun.decimals import decimal
from gpurun.errors import UsageError
from gpurun.gpu.nvidia.request.settings import roots_of, site_settings
from gpurun.gpu.vendors import NAMES
from gpurun.invocation import Invocation
from gpurun.kubernetes.extra import need
from gpurun.record import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.kubernetes.config_source import ConfigSource
    from gpurun.kubernetes.probes import Probes
    from gpurun.kubernetes.specs import NodeHost


def config_changes(invocation: Invocation) -> dict[str, object]:
    """The fields of the configuration that the command line sets."""
    changes: dict[str, object] = {}
    for option, field in (
        ("mig-strategy", "mig_strategy"),
        ("device-id-strategy", "id_strategy"),
        ("mps-root", "mps_root"),
    ):
        if option in invocation.options:
            changes[field] = invocation.option(option)
    for option, field in (("pass-device-specs", "pass_device_specs"), ("fail-on-init-error", "fail_on_init_error")):
        if option in invocation.options:
            changes[field] = invocation.flag(option)
    strategies = [word.strip() for text in invocation.texts("device-list-strategy") for word in text.split(",")]
    if strategies:
        changes["list_strategies"] = tuple(strategies)
    return changes


def config_source(invocation: Invocation, env: Mapping[str, str], changed: Callable[[], None]) -> ConfigSource:
    """The configuration: ``--config-file``, or a file of ``--config-dir`` that a label of the node names.

    *changed* is called when that label changes.  In a pod, which every node of a cluster has, a node without a GPU is no
    error where nothing else is said.  Raises :class:`UsageError` for both options.
    """
    from gpurun.kubernetes.config import PluginConfig
    from gpurun.kubernetes.config_source import LABEL, ConfigSource, NodeLabel

    label = None
    path, directory = invocation.option("config-file", env.get("CONFIG_FILE", "")), invocation.option("config-dir")
    if directory:
        if path:
            raise UsageError("--config-file and --config-dir exclude each other: name a file or a directory of files")
        need("kubernetes")
        from gpurun.kubernetes.api import connect

        api, once = connect(invocation.option("kubeconfig")), invocation.flag("oneshot")
        label = NodeLabel(api, node_name(invocation), LABEL, changed, once)
        path = directory
    base = PluginConfig(fail_on_init_error=not invocation.option("host-root"))
    named = (lambda: label.value) if label else None
    return ConfigSource(path, env, config_changes(invocation), named, invocation.option("default-config"), base)


def host_of(invocation: Invocation, driver_root: str = "", dev_root: str = "") -> NodeHost:
    """Where this node's driver and /dev are.  In a pod, ``--host-root`` is where the host's root is mounted."""
    from gpurun.kubernetes.specs import NodeHost

    env = dict(os.environ)
    root = invocation.option("host-root").rstrip("/")
    if root:
        env["GPURUN_SYSROOT"] = root
    roots = roots_of(env, site_settings(env))
    driver = invocation.option("driver-root", driver_root)
    roots = replace(roots, driver_root=driver or roots.driver_root)
    if dev_root and dev_root != "/" and dev_root != driver:
        roots = replace(roots, dev_root=dev_root)
    hook = invocation.option("hook-path")
    return NodeHost(roots, root, hook_program(hook) if hook or not root else ("/usr/bin/gpurun", "hook"))


def vendors_of(invocation: Invocation) -> tuple[str, ...]:
    """``--vendors``: whose GPUs this is for.  Raises :class:`UsageError` for a maker that gpurun does not know."""
    words = [word.strip() for text in invocation.texts("vendors") for word in text.split(",")]
    for word in words:
        if word not in NAMES:
            raise UsageError(f'--vendors: "{word}" is not one of {", ".join(NAMES)}')
    return tuple(words) or NAMES


def node_name(invocation: Invocation) -> str:
    """The name of this node in the cluster: ``--node-name``, $NODE_NAME, or the host's name as the kubelet takes it."""
    return invocation.option("node-name") or os.environ.get("NODE_NAME", "") or socket.gethostname().lower()


def interval(invocation: Invocation, default: float) -> float:
    """``--interval`` in seconds.  Raises :class:`UsageError`."""
    text = invocation.option("interval")
    if not text:
        return default
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 86400:
        raise UsageError(f'--interval: "{text}" is not a number of seconds from 0.1 to 86400')
    return value


@contextmanager
def serving_probes(invocation: Invocation) -> Iterator[Probes]:
    """What ``--health-listen`` serves meanwhile; nothing without it.

    Raises :class:`GpurunError` when the address cannot be listened on.
    """
    from gpurun.kubernetes.probes import Probes, serve_probes

    probes = Probes()
    given = invocation.option("health-listen")
    if not given:
        yield probes
        return
    with serve_probes(*listen_address(given, "health-listen"), probes):
        yield probes


@contextmanager
def ended_by_late_gpus(host: NodeHost, end: Callable[[], None]) -> Iterator[None]:
    """Meanwhile *end* is called, from another thread, when there are GPUs that only a new container may open."""
    from gpurun.kubernetes.late_gpus import LateGpus

    late = LateGpus(host.roots, os.environ, end)
    late.start()
    try:
        yield
    finally:
        late.stop()


def listen_address(text: str, option: str) -> tuple[str, int]:
    """(address, port) of ``ADDRESS:PORT``, ``[ADDRESS]:PORT`` or ``:PORT`` (an empty address: all).  Raises UsageError."""
    address, colon, digits = text.rpartition(":")
    port = decimal(digits, 65535)
    if not colon or port is None:
        raise UsageError(f'--{option}: "{text}" is not ADDRESS:PORT, such as 127.0.0.1:9400 or :9400')
    return address.strip("[]"), port


def until_signal(stop: Callable[[], None]) -> None:
    """Call *stop* in a thread when a signal asks this process to end; a second time it ends at once.

    The handler runs in the main thread, between any two steps of it: called there, *stop* would wait for good for a lock
    that the main thread holds, as that of the :class:`threading.Event` that it is about to wait for.
    """

    def ask(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        _thread.start_new_thread(stop, ())  # threading.Thread has locks of its own

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
