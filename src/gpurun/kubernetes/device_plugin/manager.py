"""The device plugin of a node: looks at the GPUs, says what is offered, and keeps it offered.

One thread does all of it; a second one only waits for the driver's events.  Whatever fails is tried again at the next look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue

from gpurun import log
from gpurun.cdi.document import CdiEdits, CdiSpec
from gpurun.errors import GpurunError
from gpurun.gpu.host.reads import exists
from gpurun.gpu.nvidia.host.nvml_watch import XidEvent
from gpurun.gpu.nvidia.host.roots import dev_root
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.device_plugin.mps_daemons import MpsDaemons
from gpurun.kubernetes.device_plugin.plugin import Offering
from gpurun.kubernetes.device_plugin.plugins import Plugins
from gpurun.kubernetes.device_plugin.preferred import nearness_of
from gpurun.kubernetes.device_plugin.resources import Offer, offers
from gpurun.kubernetes.device_plugin.response import CLASS, CONTROL_NODES, VENDOR
from gpurun.kubernetes.health import HealthState, xid_filter
from gpurun.kubernetes.kubelet import KUBELET_DIR
from gpurun.kubernetes.node import NodeGpus, has_hardware, read_node
from gpurun.kubernetes.probes import Probes
from gpurun.kubernetes.specs import (
    CDI_DIR,
    NodeHost,
    device_spec,
    file_name,
    merged,
    mode_edits,
    with_edits,
    write,
)
from gpurun.kubernetes.xid_watch import XidWatch
from gpurun.record import Record


class Places(Record):
    """Where the kubelet and the container engine look, where NVIDIA's programs are (empty: PATH), and how often the GPUs are
    looked at (seconds)."""

    kubelet_dir: str = KUBELET_DIR
    cdi_dir: str = CDI_DIR
    programs: str = ""
    interval_s: float = 5.0


class Manager:
    """The whole of ``gpurun kubernetes device-plugin``: :meth:`run` until :meth:`stop`, which any thread may call.

    *configuration* is asked at every look: it may come from a file or a node label that changes.  *probes* are told whether
    the kubelet has all that there is to offer.
    """

    def __init__(
        self, host: NodeHost, configuration: Callable[[], PluginConfig], places: Places, env: Mapping[str, str],
        probes: Probes | None = None,
    ) -> None:  # fmt: skip
        self._host, self._configuration, self._places, self._env = host, configuration, places, env
        self._health = HealthState(xid_filter(env))
        self._events: SimpleQueue[XidEvent] = SimpleQueue()
        self._watch = XidWatch(host.roots, self._event)
        self._plugins = Plugins(places.kubelet_dir, self._write_spec)
        self._mps = MpsDaemons(host, places.programs)
        self._spec: CdiSpec | None = None
        self._spec_lock = threading.Lock()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._said: dict[str, float] = {}
        self._probes = probes or Probes()
        self._problem = ""  # why nothing is offered
        self._ready = False  # a look was good
        self._due = False

    def run(self) -> None:
        """Serve until :meth:`stop`.  Raises :class:`GpurunError` when the first look fails and the site wants it so."""
        self._watch.start()
        try:
            next_look = 0.0
            while not self._stop.is_set():
                if self._due or time.monotonic() >= next_look or not self._events.empty():
                    self._due = False
                    self._look()
                    next_look = time.monotonic() + self._places.interval_s
                problems = self._plugins.keep_registered()
                for problem in problems:
                    self._say(problem)
                self._probes.beat()
                self._probes.tell(self._not_ready(problems))
                self._wake.wait(min(1.0, self._places.interval_s))
                self._wake.clear()
        finally:
            self._watch.stop()
            self._plugins.stop()

    def stop(self) -> None:
        """End :meth:`run`."""
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        """Look at the configuration and the GPUs now."""
        self._due = True
        self._wake.set()

    def _not_ready(self, problems: list[str]) -> str:
        """Why the kubelet does not have what is to be offered; on a node without a GPU it has all of it."""
        if self._problem or problems:
            return self._problem or problems[0]
        missing = self._plugins.unregistered()
        return f"{', '.join(missing)}: not registered with the kubelet" if missing else ""

    def _event(self, event: XidEvent) -> None:
        self._events.put(event)
        self._wake.set()

    def _look(self) -> None:
        fatal = not self._ready
        try:
            config = self._configuration()
            fatal = fatal and config.fail_on_init_error
            for warning in config.warnings:
                self._say(warning)
            self._offer(config)
            self._ready, self._problem = True, ""
        except GpurunError as e:
            if fatal:
                raise
            self._problem = str(e) if has_hardware(self._host.roots) else ""
            self._say(str(e))
            self._plugins.all_unhealthy(str(e))

    def _offer(self, config: PluginConfig) -> None:
        """Read the node, and offer what it has.  Raises :class:`GpurunError` when there is nothing."""
        node = read_node(self._host.roots)
        self._take_in(node)
        if not node.gpus:
            why = "the driver has none" if node.driver else "the NVIDIA driver is not loaded"
            raise GpurunError(f"no GPU: {why}; `gpurun gpu doctor` says more")
        if node.nvml:
            self._say(node.nvml)
        made = offers(node, config)
        self._mps.keep([offer for offer in made if offer.strategy == "mps"], config.mps_root)
        if any(name.startswith("cdi-") for name in config.list_strategies):
            self._make_spec(node, config)
        dev = dev_root(self._host.roots).rstrip("/")
        nodes = tuple([path for path in CONTROL_NODES if exists(dev + path)])
        if self._host.root and (dev == self._host.root or dev.startswith(f"{self._host.root}/")):
            dev = dev[len(self._host.root) :]
        ill, near = self._health.unhealthy(node), nearness_of(node)
        self._plugins.offer(
            tuple(
                [
                    Offering(offer, config, near, self._unhealthy(offer, ill), self._mps.place(offer.name), nodes, dev)
                    for offer in made
                ]
            )
        )

    def _take_in(self, node: NodeGpus) -> None:
        self._health.look(node)
        while True:
            try:
                event = self._events.get_nowait()
            except Empty:
                return
            hit = self._health.xid(event, node)
            log.warning(f"Xid {event.xid} of {event.uuid or 'a GPU'}: {'unhealthy' if hit else 'does not count'}")

    def _unhealthy(self, offer: Offer, ill: Mapping[str, str]) -> dict[str, str]:
        problem = self._mps.problem(offer.name)
        if problem:
            return {device.id: problem for device in offer.devices}
        return {device.id: ill[device.uuid] for device in offer.devices if device.uuid in ill}

    @property
    def _spec_path(self) -> str:
        return file_name(self._places.cdi_dir, VENDOR, CLASS)

    def _make_spec(self, node: NodeGpus, config: PluginConfig) -> None:
        spec = device_spec(self._host, VENDOR, CLASS, ("all",), config.id_strategy, self._env)
        for name, wanted in (("gds", config.gds), ("mofed", config.mofed), ("gdrcopy", config.gdrcopy)):
            if wanted:
                spec = with_edits(spec, self._mode_edits(name, required=True))
        if config.imex_channels:
            spec = with_edits(spec, self._mode_edits("imex", required=config.imex_required))
        with self._spec_lock:
            self._spec = spec
        self._write_spec()

    def _mode_edits(self, mode: str, required: bool) -> CdiEdits:
        try:
            return mode_edits(self._host, mode)
        except GpurunError as e:
            if required:
                raise
            self._say(str(e))
            return merged()

    def _write_spec(self) -> None:
        """Have the CDI file there, as it is to be.  Raises :class:`GpurunError`.

        It stays when this process ends: the kubelet starts containers again without asking, by the names in it.
        """
        with self._spec_lock:
            if self._spec is not None:
                write(self._spec_path, self._spec)

    def _say(self, text: str) -> None:
        """Warn of *text*: at once, and again every ten minutes while it stays true."""
        now = time.monotonic()
        if now - self._said.get(text, -1e9) > 600:
            self._said[text] = now
            log.warning(text)
        if len(self._said) > 100:
            self._said = {key: when for key, when in self._said.items() if now - when <= 600}
