"""Whose GPUs a DRA driver gives to claims, as the service asks for it; and NVIDIA's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Protocol

from gpurun import log
from gpurun.gpu.nvidia.host.nvml_watch import XidEvent
from gpurun.gpu.nvidia.memory_limits import NOT_KNOWN
from gpurun.kubernetes.dra.prepare import MakeSpec
from gpurun.kubernetes.dra.slices import DRIVER, Allocatable, NodePool, Pool, allocatable
from gpurun.kubernetes.health import HealthState, xid_filter
from gpurun.kubernetes.node import read_node
from gpurun.kubernetes.specs import NodeHost
from gpurun.kubernetes.xid_watch import XidWatch
from gpurun.record import Record


class View(Record):
    """The devices of a node at a moment: what is published, what claims can be given by name, what is wrong with each
    (empty: nothing)."""

    pool: Pool
    devices: Mapping[str, Allocatable]
    problems: Mapping[str, str]


class Backend(Protocol):
    """The GPUs of one maker.  *driver* is the name of the DRA driver; *shares*: it has MPS daemons.

    *spec* makes the CDI specification of devices, None for that of NVIDIA's.
    """

    driver: str
    shares: bool
    spec: MakeSpec | None

    def start(self) -> None:
        """Begin to listen for what the driver of the kernel says, if it says anything."""

    def stop(self) -> None:
        """End that."""

    def has_news(self) -> bool:
        """Whether it has said something since the last look."""

    def look(self) -> View:
        """Look at the GPUs.  Raises :class:`GpurunError`."""


class NvidiaBackend:
    """The :class:`Backend` of NVIDIA's GPUs; *woken* is called when the driver has reported something.

    *shared*: several claims may share a GPU's memory.
    """

    def __init__(self, host: NodeHost, env: Mapping[str, str], woken: Callable[[], None], shared: bool = False) -> None:
        self.driver, self.shares = DRIVER, True
        self.spec: MakeSpec | None = None
        self._host, self._woken, self._shared = host, woken, shared
        self._said: set[str] = set()
        self._health = HealthState(xid_filter(env))
        self._events: SimpleQueue[XidEvent] = SimpleQueue()
        self._watch = XidWatch(host.roots, self._event)

    def start(self) -> None:
        """Wait for Xid errors, in a thread."""
        self._watch.start()

    def stop(self) -> None:
        """End that."""
        self._watch.stop()

    def has_news(self) -> bool:
        """Whether there are Xid errors that no look has taken in."""
        return not self._events.empty()

    def look(self) -> View:
        """Read the node."""
        node = read_node(self._host.roots)
        self._health.look(node)
        while True:
            try:
                event = self._events.get_nowait()
            except Empty:
                break
            hit = self._health.xid(event, node)
            log.warning(f"Xid {event.xid} of {event.uuid or 'a GPU'}: {'unhealthy' if hit else 'does not count'}")
        ill, devices = self._health.unhealthy(node), allocatable(node)
        problems = {name: ill.get(one.uuid) or ill.get(one.gpu_uuid, "") for name, one in devices.items()}
        if self._shared and node.gpus and not node.nvml and not node.limits:
            self._warn_once(f"no claim gets a share of a GPU's memory: {NOT_KNOWN}")
        return View(NodePool(node, ill, self._shared), devices, problems)

    def _warn_once(self, text: str) -> None:
        if text not in self._said:
            log.warning(text)
        self._said.add(text)

    def _event(self, event: XidEvent) -> None:
        self._events.put(event)
        self._woken()
