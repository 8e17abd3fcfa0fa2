"""The GPUs of a maker whose room describes them for a cluster (:mod:`gpurun.gpu.cluster`), for claims."""

from __future__ import annotations

from collections.abc import Mapping

from gpurun.cdi.document import CdiSpec
from gpurun.errors import GpurunError
from gpurun.gpu.cluster import ClusterGpu
from gpurun.gpu.vendors import Vendor
from gpurun.kubernetes.dra.backend import View
from gpurun.kubernetes.dra.prepare import CLASS, MakeSpec
from gpurun.kubernetes.dra.slices import Allocatable, Object, make_slices, quantity, semantic_version, unhealthy
from gpurun.kubernetes.makers import gpus_of, spec_of
from gpurun.kubernetes.specs import NodeHost
from gpurun.record import Record

#: The API's limit for the text of an attribute.
_MAX_TEXT = 64


class MakerPool(Record):
    """The :class:`gpurun.kubernetes.dra.slices.Pool` of *gpus*; *ill* is by the name of a device."""

    driver: str
    gpus: tuple[ClusterGpu, ...]
    ill: Mapping[str, str]

    @property
    def counts(self) -> bool:
        """No: what is divided has devices of its own, each whole."""
        return False

    @property
    def shares(self) -> bool:
        """No: nothing would limit them."""
        return False

    def slices(self, name: str, server_minor: int, counting: bool, tainting: bool, sharing: bool) -> list[Object]:
        """Each device with its attributes; one that is not well has a taint, or is left out where the server has none."""
        made = []
        for gpu in self.gpus:
            taints = {"taints": [unhealthy(self.driver)]} if gpu.name in self.ill else {}
            if not taints or tainting:
                made.append(device_of(gpu) | taints)
        return make_slices(self.driver, name, made, [], server_minor)


class MakerBackend:
    """The :class:`gpurun.kubernetes.dra.backend.Backend` of the row *vendor*."""

    def __init__(self, vendor: Vendor, host: NodeHost) -> None:
        self.driver, self.shares = vendor.driver, False
        self.spec: MakeSpec | None = self._spec_of
        self._vendor, self._host = vendor, host

    def start(self) -> None:
        """Nothing: these drivers are polled; they send no events."""

    def stop(self) -> None:
        """Nothing."""

    def has_news(self) -> bool:
        """No."""
        return False

    def look(self) -> View:
        """Read the node.  Raises :class:`GpurunError`."""
        gpus = gpus_of(self._vendor, self._host).gpus
        ill = {gpu.name: gpu.why for gpu in gpus if gpu.why}
        devices = {gpu.name: Allocatable(gpu.name, gpu.id, gpu.id, gpu.unit.index) for gpu in gpus}
        return View(MakerPool(self.driver, gpus, ill), devices, {gpu.name: gpu.why for gpu in gpus})

    def _spec_of(self, ids: tuple[str, ...]) -> CdiSpec:
        """The specification of the devices *ids*, which are called so in it, as the node is now."""
        here = {gpu.id: gpu for gpu in gpus_of(self._vendor, self._host).gpus}
        for identity in ids:
            if identity not in here:
                raise GpurunError(f"{self.driver}: {identity} is not on this node any more")
            if here[identity].edits is None:
                raise GpurunError(f"{self.driver}: {identity}: {here[identity].why}")
        spec = spec_of(f"k8s.{self.driver}/{CLASS}", [(identity, here[identity]) for identity in ids], self._host)
        if spec is None:
            raise GpurunError(f"{self.driver}: a claim without devices")
        return spec


def device_of(gpu: ClusterGpu) -> Object:
    """*gpu* as a device of a ResourceSlice, without taints."""
    attributes: Object = {}
    for name, kind, value in gpu.attributes:
        told = semantic_version(str(value)) if kind == "version" else value
        if kind == "version" and len(str(told)) > _MAX_TEXT:
            continue
        attributes[name] = {kind: told[:_MAX_TEXT] if isinstance(told, str) else told}
    capacity = {name: {"value": quantity(amount) if name == "memory" else str(amount)} for name, amount in gpu.capacity}
    return {"name": gpu.name, "attributes": attributes} | ({"capacity": capacity} if capacity else {})
