"""What a node offers of the GPUs of a maker whose room describes them for a cluster (:mod:`gpurun.gpu.cluster`)."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

from gpurun import log
from gpurun.cdi.document import CdiSpec
from gpurun.errors import GpuError, GpurunError
from gpurun.gpu.cluster import ClusterGpu
from gpurun.gpu.device import GpuDevice
from gpurun.gpu.surveys import limited_survey
from gpurun.gpu.vendors import EVERY_MAKER, Vendor
from gpurun.kubernetes.config import MPS, PREFIX, PluginConfig
from gpurun.kubernetes.device_plugin.plugin import Offering
from gpurun.kubernetes.device_plugin.resources import Offer, Offered, offer_of
from gpurun.kubernetes.device_plugin.response import Naming
from gpurun.kubernetes.makers import gpus_of, spec_of
from gpurun.kubernetes.specs import NodeHost, file_name, write

#: A resource's name has at most 63 characters behind its prefix.
_MAX_NAME = 63
#: Seconds after which links are asked for again that were not known.
_RETRY_S = 60.0


class MakerSource:
    """A :class:`gpurun.kubernetes.device_plugin.sources.Source` for the row *vendor*."""

    def __init__(self, vendor: Vendor, host: NodeHost, cdi_dir: str) -> None:
        self._vendor, self._host = vendor, host
        self._naming = naming_of(vendor)
        self._path = file_name(cdi_dir, *self._naming.kind.split("/"))
        self._spec: CdiSpec | None = None
        self._spec_lock = threading.Lock()
        self._units: dict[str, GpuDevice] = {}
        self._links_until = math.inf  # when links are asked for again (monotonic clock)
        self._had = False

    def start(self) -> None:
        """Nothing: these drivers are polled; they send no events."""

    def stop(self) -> None:
        """Nothing; the CDI file stays, for the kubelet starts containers again by the names in it."""

    def expected(self) -> bool:
        """Whether there were some.  A GPU without its driver counts not at all: many processors have one inside."""
        return self._had

    def offerings(self, config: PluginConfig) -> tuple[Offering, ...]:
        """Read the node, and say what it has.  Raises :class:`GpurunError` when there is nothing."""
        gpus = gpus_of(self._vendor, self._host).gpus
        if not gpus:
            raise GpurunError(f"no GPU of {self._vendor.name}'s: its driver has none, or is not loaded")
        self._had = True
        if set(self._units) != {gpu.id for gpu in gpus} or time.monotonic() > self._links_until:
            self._units = self._linked(gpus)
        if any(name.startswith("cdi-") for name in config.list_strategies):
            names = [(str(gpu.unit.index) if config.id_strategy == "index" else gpu.id, gpu) for gpu in gpus]
            with self._spec_lock:
                self._spec = spec_of(self._naming.kind, names, self._host)
            self.keep_spec()
        sysroot = self._host.roots.sysroot
        dev = sysroot.removeprefix(self._host.root) if self._host.root else sysroot
        made = []
        for offer in maker_offers(self._vendor, gpus, config, sysroot):
            ill = {gpu.id: gpu.why for gpu in gpus if gpu.why}
            unhealthy = {device.id: ill[device.uuid] for device in offer.devices if device.uuid in ill}
            made.append(Offering(offer, config, {}, unhealthy, dev=dev, naming=self._naming, units=self._units))
        return tuple(made)

    def _linked(self, gpus: Sequence[ClusterGpu]) -> dict[str, GpuDevice]:
        """The devices by their ids, with the links between them, which are many files to read and never change.

        With the links a maker's room looks for processes as well, for which a driver that hangs may hold whoever asks.
        """
        units: dict[str, GpuDevice] = {}
        self._links_until = math.inf
        try:
            found = limited_survey(self._vendor, {"GPURUN_SYSROOT": self._host.roots.sysroot})
            units, problem = {unit.key: unit for unit in found.units}, found.problem
        except GpuError as e:
            problem = str(e)
        if problem:
            self._links_until = time.monotonic() + _RETRY_S
            log.warning(f"how the GPUs of {self._vendor.title} are connected is not known: {problem}")
        return {gpu.id: units.get(gpu.unit.key, gpu.unit) for gpu in gpus}

    def keep_spec(self) -> None:
        """Have the CDI file there, as it is to be.  Raises :class:`GpurunError`."""
        with self._spec_lock:
            if self._spec is not None:
                write(self._path, self._spec)


def naming_of(vendor: Vendor) -> Naming:
    """How containers get the maker's devices."""
    return Naming(
        f"k8s.device-plugin.{vendor.kind}", vendor.variable, f"{vendor.name}-device-plugin", vendor.variable != EVERY_MAKER
    )


def maker_offers(vendor: Vendor, gpus: Sequence[ClusterGpu], config: PluginConfig, sysroot: str = "") -> tuple[Offer, ...]:
    """The resources of *gpus*, by name.

    One of its own for each style of parts where they are of several, or with the strategy ``mixed``.  Raises
    :class:`GpuError` for several with the strategy ``single``, and for sharing by MPS.
    """
    styles = sorted({gpu.style for gpu in gpus if _is_name(gpu.style)})
    if len(styles) > 1 and config.mig_strategy == "single":
        raise GpuError(f"strategy single: there are GPUs divided as {' and '.join(styles)}: use mixed, or divide them alike")
    apart = len(styles) > 1 or config.mig_strategy == "mixed"
    found: dict[str, list[Offered]] = {}
    for gpu in gpus:
        name = gpu.style if apart and gpu.style in styles else gpu.resource
        found.setdefault(f"{vendor.resource}{name}", []).append(_offered(gpu, sysroot))
    made = [offer_of(name, tuple(devices), config) for name, devices in sorted(found.items())]
    for offer in made:
        if offer.strategy == MPS:
            raise GpuError(
                f"sharing {offer.base} by MPS: only GPUs of {PREFIX} can be shared by MPS, use sharing.timeSlicing"
            )
    return tuple(made)


def _offered(gpu: ClusterGpu, sysroot: str) -> Offered:
    unit, edits = gpu.unit, gpu.edits
    return Offered(
        gpu.id,
        gpu.id,
        str(unit.index),
        unit.gpu_key,
        unit.numa_node,
        max(unit.memory, 0),
        tuple([node.path for node in edits.device_nodes]) if edits else (),
        links=tuple([(m.host_path.removeprefix(sysroot), m.container_path) for m in edits.mounts]) if edits else (),
        word=unit.name,
    )


def _is_name(style: str) -> bool:
    kept = all(c.isascii() and (c.isalnum() or c in "_-.") for c in style)
    return 0 < len(style) <= _MAX_NAME and kept and style[0].isalnum() and style[-1].isalnum()
