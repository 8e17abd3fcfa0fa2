"""The device plugin of a node: looks at the GPUs, says what is offered, and keeps it offered.

One thread does all of it; others only wait for drivers' events.  Whatever fails is tried again at the next look, and what
fails of one maker's GPUs changes nothing for those of another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from gpurun import log
from gpurun.errors import GpurunError
from gpurun.gpu.vendors import NAMES, VENDORS
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.device_plugin.maker_source import MakerSource
from gpurun.kubernetes.device_plugin.nvidia_source import NvidiaSource
from gpurun.kubernetes.device_plugin.plugin import Offering
from gpurun.kubernetes.device_plugin.plugins import Plugins, unwell
from gpurun.kubernetes.device_plugin.sources import Source
from gpurun.kubernetes.kubelet import KUBELET_DIR
from gpurun.kubernetes.probes import Probes
from gpurun.kubernetes.specs import CDI_DIR, NodeHost
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

    *configuration* is asked at every look: it may come from a file or a node label that changes.  *probes* learn whether
    the kubelet has all that there is to offer.  *makers* are names of :data:`gpurun.gpu.vendors.VENDORS`.
    """

    def __init__(
        self, host: NodeHost, configuration: Callable[[], PluginConfig], places: Places, env: Mapping[str, str],
        probes: Probes | None = None, makers: tuple[str, ...] = NAMES,
    ) -> None:  # fmt: skip
        self._configuration, self._places = configuration, places
        self._stop, self._wake = threading.Event(), threading.Event()
        self._sources: list[Source] = []
        for row in VENDORS:
            if row.name not in makers:
                continue
            if row.driver:
                self._sources.append(MakerSource(row, host, places.cdi_dir))
            else:
                self._sources.append(NvidiaSource(host, places.cdi_dir, places.programs, env, self._say, self.wake))
        self._offered: dict[int, tuple[Offering, ...]] = {}  # number of the source → what it offers
        self._plugins = Plugins(places.kubelet_dir, self._keep_specs)
        self._said: dict[str, float] = {}
        self._probes = probes or Probes()
        self._problem = ""  # why something is not offered
        self._ready = False  # a look was good
        self._due = False

    def run(self) -> None:
        """Serve until :meth:`stop`.  Raises :class:`GpurunError` when the first look fails and the site wants it so."""
        for source in self._sources:
            source.start()
        try:
            next_look = 0.0
            while not self._stop.is_set():
                if self._due or time.monotonic() >= next_look:
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
            for source in self._sources:
                source.stop()
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

    def _look(self) -> None:
        fatal = not self._ready
        try:
            config = self._configuration()
            fatal = fatal and config.fail_on_init_error
            for warning in config.warnings:
                self._say(warning)
            self._offer(config, fatal)
        except GpurunError as e:
            if fatal:
                raise
            self._problem = str(e) if any(source.expected() for source in self._sources) else ""
            self._say(str(e))
            self._plugins.all_unhealthy(str(e))

    def _offer(self, config: PluginConfig, fatal: bool) -> None:
        """Offer what the node has; *fatal*: raise :class:`GpurunError` for GPUs that cannot be offered, and for none."""
        failed: list[tuple[Source, GpurunError]] = []
        for number, source in enumerate(self._sources):
            try:
                self._offered[number] = source.offerings(config)
            except GpurunError as e:
                failed.append((source, e))
                self._offered[number] = unwell(self._offered.get(number, ()), str(e))
        nothing = len(failed) == len(self._sources)
        problems = [str(e) for source, e in failed if source.expected()]
        if fatal and (problems or nothing):
            raise next((e for source, e in failed if source.expected()), failed[0][1])
        self._plugins.offer(tuple([offering for offered in self._offered.values() for offering in offered]))
        self._ready = self._ready or not nothing
        self._problem = problems[0] if problems else ""
        for problem in problems or ([str(failed[0][1])] if nothing else []):
            self._say(problem)

    def _keep_specs(self) -> None:
        """Have the CDI files there, as they are to be.  Raises :class:`GpurunError`."""
        for source in self._sources:
            source.keep_spec()

    def _say(self, text: str) -> None:
        """Warn of *text*: at once, and again every ten minutes while it stays true."""
        now = time.monotonic()
        if now - self._said.get(text, -1e9) > 600:
            self._said[text] = now
            log.warning(text)
        if len(self._said) > 100:
            self._said = {key: when for key, when in self._said.items() if now - when <= 600}
