"""What a node offers of NVIDIA's GPUs: GPUs and MIG devices, their health by NVML, MPS daemons, the CDI file."""

from __future__ import annotations

import threading
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
from gpurun.kubernetes.device_plugin.preferred import nearness_of
from gpurun.kubernetes.device_plugin.resources import Offer, offers
from gpurun.kubernetes.device_plugin.response import CLASS, CONTROL_NODES, VENDOR
from gpurun.kubernetes.health import HealthState, xid_filter
from gpurun.kubernetes.node import NodeGpus, has_hardware, read_node
from gpurun.kubernetes.specs import NodeHost, device_spec, file_name, merged, mode_edits, with_edits, write
from gpurun.kubernetes.xid_watch import XidWatch


class NvidiaSource:
    """A :class:`gpurun.kubernetes.device_plugin.sources.Source`.

    *programs* is where NVIDIA's programs are (empty: PATH), *say* is called with warnings, *woken* when the driver has
    reported something.
    """

    def __init__(
        self, host: NodeHost, cdi_dir: str, programs: str, env: Mapping[str, str], say: Callable[[str], None],
        woken: Callable[[], None],
    ) -> None:  # fmt: skip
        self._host, self._env, self._say, self._woken = host, env, say, woken
        self._path = file_name(cdi_dir, VENDOR, CLASS)
        self._health = HealthState(xid_filter(env))
        self._events: SimpleQueue[XidEvent] = SimpleQueue()
        self._watch = XidWatch(host.roots, self._event)
        self._mps = MpsDaemons(host, programs)
        self._spec: CdiSpec | None = None
        self._spec_lock = threading.Lock()

    def start(self) -> None:
        """Wait for Xid errors, in a thread."""
        self._watch.start()

    def stop(self) -> None:
        """End that; the CDI file and MPS daemons stay: containers are started again by what is in them."""
        self._watch.stop()

    def expected(self) -> bool:
        """Whether there is a GPU on the PCI bus, whatever drives it."""
        return has_hardware(self._host.roots)

    def offerings(self, config: PluginConfig) -> tuple[Offering, ...]:
        """Read the node, and say what it has.  Raises :class:`GpurunError` when there is nothing."""
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
            self._make_spec(config)
        dev = dev_root(self._host.roots).rstrip("/")
        nodes = tuple([path for path in CONTROL_NODES if exists(dev + path)])
        if self._host.root and (dev == self._host.root or dev.startswith(f"{self._host.root}/")):
            dev = dev[len(self._host.root) :]
        ill, near = self._health.unhealthy(node), nearness_of(node)
        return tuple(
            [
                Offering(offer, config, near, self._unhealthy(offer, ill), self._mps.place(offer.name), nodes, dev)
                for offer in made
            ]
        )

    def _event(self, event: XidEvent) -> None:
        self._events.put(event)
        self._woken()

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

    def _make_spec(self, config: PluginConfig) -> None:
        spec = device_spec(self._host, VENDOR, CLASS, ("all",), config.id_strategy, self._env)
        for name, wanted in (("gds", config.gds), ("mofed", config.mofed), ("gdrcopy", config.gdrcopy)):
            if wanted:
                spec = with_edits(spec, self._mode_edits(name, required=True))
        if config.imex_channels:
            spec = with_edits(spec, self._mode_edits("imex", required=config.imex_required))
        with self._spec_lock:
            self._spec = spec
        self.keep_spec()

    def _mode_edits(self, mode: str, required: bool) -> CdiEdits:
        try:
            return mode_edits(self._host, mode)
        except GpurunError as e:
            if required:
                raise
            self._say(str(e))
            return merged()

    def keep_spec(self) -> None:
        """Have the CDI file there, as it is to be.  Raises :class:`GpurunError`.

        It stays when this process ends: the kubelet starts containers again without asking, by the names in it.
        """
        with self._spec_lock:
            if self._spec is not None:
                write(self._path, self._spec)
