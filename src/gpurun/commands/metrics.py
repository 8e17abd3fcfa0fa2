"""metrics: figures of the GPUs and of each container, for Prometheus: over HTTP, or once on stdout."""

from __future__ import annotations

import os
import socket
import threading
import time

from gpurun import log
from gpurun.commands.gpu_use import state_roots
from gpurun.commands.kubernetes_options import ended_by_late_gpus, host_of, listen_address, node_name, until_signal
from gpurun.errors import GpurunError, oserror_text
from gpurun.gpu.nvidia.host.nvml import METRICS, find_nvml, query
from gpurun.gpu.nvidia.host.nvml_watch import XidEvent
from gpurun.gpu.offers import none_of_any
from gpurun.gpu.readings import Readers
from gpurun.gpu.vendors import present
from gpurun.invocation import Invocation
from gpurun.kubernetes.extra import need
from gpurun.kubernetes.makers import NVIDIA
from gpurun.output import write_stdout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.metrics.counters import CountersFile
    from gpurun.metrics.pods import Pods
    from gpurun.metrics.samples import Sample
    from gpurun.metrics.web import Web

DEFAULT_LISTEN = "127.0.0.1:9400"
#: Seconds for which an answer of NVML's serves: several Prometheis may ask.
_FRESH_S = 2.0
_TIMEOUT_S = 5.0


class Reader:
    """Gathers the samples; what cannot be had is left out, and said once."""

    def __init__(self, invocation: Invocation) -> None:
        self._said: set[str] = set()
        self._roots = state_roots(invocation.globals.root, invocation.globals.root_given)
        self._host = host_of(invocation)
        self._pods = invocation.option("pod-resources")
        self._counters = _counters(invocation)
        self._sysroot = self._host.roots.sysroot
        self._env = {"GPURUN_SYSROOT": self._sysroot}
        self._readers = Readers(self._env, _TIMEOUT_S, self._say, figures=True)
        #: What the API server knows of pods, where it is to be asked.
        self.pods = _pods(invocation, self._say)
        self._name = invocation.option("node-name") or os.environ.get("NODE_NAME", "") or socket.gethostname()
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self._read_at = -1e9
        #: The last Xid of each GPU; None while there is no watch.
        self.xids: dict[str, int] | None = None
        #: Called when there is a driver that tells of Xids.
        self.watch_xids: Callable[[], None] = lambda: None

    def __call__(self) -> list[Sample]:
        """The samples of now, or of a moment ago."""
        from gpurun.metrics.containers import container_samples, running_containers

        with self._lock:
            if time.monotonic() - self._read_at > _FRESH_S:
                self._samples = [*self._gpus(), *container_samples(running_containers(self._roots))]
                self._read_at = time.monotonic()
            return self._samples

    def xid(self, event: XidEvent) -> None:
        """Remember *event*."""
        if self.xids is not None:
            self.xids[event.uuid] = event.xid

    def _gpus(self) -> list[Sample]:
        from gpurun.kubernetes.pod_resources import SOCKET, owners
        from gpurun.metrics.fields import words
        from gpurun.metrics.gpus import gpu_samples
        from gpurun.metrics.health import health_samples
        from gpurun.metrics.makers import kubelet_names, maker_samples

        counters = self._counters.now() if self._counters is not None else None
        asked = words(frozenset([one.field for one in counters.metrics])) if counters is not None else ()
        here = [row.name for row in present(self._env)]
        answer = None
        if NVIDIA in here:
            self.watch_xids()
            try:
                answer = query(find_nvml(self._host.roots), METRICS, _TIMEOUT_S, asked)
            except GpurunError as e:
                self._say(str(e))
        elif not here:
            self._say(none_of_any(self._env))
        found = self._readers.read()
        if answer is None and not found.measured:
            return []
        try:
            having = owners(self._pods or SOCKET)
        except GpurunError as e:
            self._say(str(e))
            having = ()
        having = self.pods.known(having) if self.pods is not None else having
        names = kubelet_names(frozenset([one.vendor for one in having]) & frozenset(here) - {NVIDIA}, self._sysroot)
        made = maker_samples(found, self._name, having, names)
        labels = () if counters is None else (counters.labels,)
        nvidia = gpu_samples(answer, self._name, having, self.xids, *labels) if answer is not None else []
        health = health_samples(answer, found.measured, self._name, self.xids)
        chosen = [*nvidia, *made] if counters is None else counters.chosen([*nvidia, *made])
        return [*chosen, *health]

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning(text)


def metrics(invocation: Invocation) -> int:
    """Serve /metrics until a signal ends it, or with ``--once`` print them; the exit code.

    Raises :class:`GpurunError` when the address cannot be listened on.
    """
    need("prometheus_client", "grpc", "google.protobuf")
    from gpurun.kubernetes.xid_watch import XidWatch
    from gpurun.metrics.exposition import application, text
    from gpurun.metrics.server import Server

    web = _web(invocation)
    reader = Reader(invocation)
    if invocation.flag("once"):
        if reader.pods is not None:
            reader.pods.look()
        write_stdout(text(reader))
        return 0
    address, port = listen_address(invocation.option("listen", DEFAULT_LISTEN), "listen")
    if not address:
        address = "::" if _has_ipv6() else "0.0.0.0"
    try:
        server = Server((address, port), application(reader), web)
    except OSError as e:
        raise GpurunError(f"--listen {invocation.option('listen', DEFAULT_LISTEN)}: {oserror_text(e)}") from None
    reader.xids = {}
    watch = XidWatch(reader._host.roots, reader.xid)
    reader.watch_xids = watch.begin
    if NVIDIA in [row.name for row in present(reader._env)]:
        watch.begin()
    if reader.pods is not None:
        reader.pods.start()
    shown = f"[{address}]" if ":" in address else address
    scheme = "https" if web().context else "http"
    log.info(f"serving {scheme}://{shown}:{server.server_port}/metrics")
    until_signal(server.shutdown)
    try:
        with ended_by_late_gpus(reader._host, server.shutdown):
            server.serve_forever()
    finally:
        watch.stop()
        if reader.pods is not None:
            reader.pods.stop()
        server.server_close()
    return 0


def _pods(invocation: Invocation, say: Callable[[str], None]) -> Pods | None:
    """What ``--pod-uid`` and ``--pod-labels`` ask the API server; None for nothing.  Raises :class:`GpurunError`."""
    uid, patterns = invocation.flag("pod-uid"), invocation.texts("pod-labels")
    if not uid and not patterns:
        return None
    from gpurun.metrics.pods import Pods, allowlist

    allowed = allowlist(patterns)
    need("kubernetes")
    from gpurun.kubernetes.api import connect

    return Pods(connect(invocation.option("kubeconfig")), node_name(invocation), uid, allowed, say)


def _counters(invocation: Invocation) -> CountersFile | None:
    """The file of ``--collectors``; None: everything that is served without one.  Raises :class:`GpurunError`."""
    from gpurun.metrics.counters import CountersFile
    from gpurun.metrics.fields import FIELDS, LABEL_FIELDS
    from gpurun.metrics.makers import maker_fields

    path = invocation.option("collectors")
    return CountersFile(path, FIELDS | maker_fields(), LABEL_FIELDS) if path else None


def _web(invocation: Invocation) -> Callable[[], Web]:
    """The configuration of ``--web-config-file`` at each moment.  Raises :class:`GpurunError` for what is wrong in it."""
    from gpurun.metrics.web import Web, WebConfig

    path = invocation.option("web-config-file") or invocation.option("web.config.file")
    if not path:
        plain = Web(WebConfig(), None)
        return lambda: plain
    need("pydantic")
    from gpurun.metrics.passwords import Passwords
    from gpurun.metrics.web_files import WebFile

    file = WebFile(os.path.abspath(path))
    if file.now().config.users:
        Passwords()  # whether there is what they need
    return file.now


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:  # the kernel has none, or it is turned off
        return False
    return True
