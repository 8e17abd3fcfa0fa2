"""The figures of GPUs that have no NVML, under the names of their makers' exporters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpurun.gpu.device import Measured
from gpurun.gpu.readings_process import Readings
from gpurun.gpu.vendors import VENDORS, module
from gpurun.kubernetes.pod_resources import Owner
from gpurun.metrics.samples import Sample

#: (maker, key of a device) → what the kubelet may call it.
Names = Mapping[tuple[str, str], frozenset[str]]


def maker_fields() -> frozenset[str]:
    """The names of all figures that there can be."""
    return frozenset([name for row in VENDORS if row.readings for name in module(row.name, "exporter").FIELDS])


def maker_samples(found: Readings, host: str, owners: tuple[Owner, ...] = (), names: Names | None = None) -> list[Sample]:
    """The samples of what was *found*; once for each container of a pod that has the device, if any has."""
    made: list[Sample] = []
    for one in found.measured:
        made += _samples(one, host, [owner for owner in owners if _has(owner, one, names or {})])
    vendors = [one.unit.vendor for one in found.measured]
    return [*[sample for name in dict.fromkeys(vendors) for sample in _total(name, vendors.count(name), host)], *made]


def _total(vendor: str, count: int, host: str) -> list[Sample]:
    """How many GPUs of a maker's there are, where its exporter tells that."""
    exporter: Any = module(vendor, "exporter")
    if not exporter.TOTAL:
        return []
    kind, text = exporter.FIELDS[exporter.TOTAL]
    return [Sample(exporter.TOTAL, kind, text, ((exporter.HOST_LABEL, host),) if exporter.HOST_LABEL else (), float(count))]


def _samples(one: Measured, host: str, having: list[Owner]) -> list[Sample]:
    exporter: Any = module(one.unit.vendor, "exporter")
    common = one.reading.labels + (((exporter.HOST_LABEL, host),) if exporter.HOST_LABEL else ())
    owned = [(("container", o.container), ("namespace", o.namespace), ("pod", o.pod), *o.more) for o in having] or [()]
    made = []
    for figure in one.reading.figures:
        kind, text = exporter.FIELDS[figure.name]
        own = (*common, *figure.labels)
        taken = {name for name, _ in own}  # a label of a pod that had one of these names would spoil the whole scrape
        for more in owned:
            labels = (*own, *[label for label in more if label[0] not in taken])
            made.append(Sample(figure.name, kind, text, labels, figure.value))
    return made


def _has(owner: Owner, one: Measured, names: Names) -> bool:
    unit = one.unit
    return owner.vendor == unit.vendor and owner.device in names.get((unit.vendor, unit.key), frozenset((unit.key,)))


def kubelet_names(vendors: frozenset[str], sysroot: str) -> dict[tuple[str, str], frozenset[str]]:
    """What the kubelet may call the devices of *vendors*: by the device plugin's id, by the DRA driver's name, and by the
    name of a node with the number of a share, as a plugin of Intel's own does."""
    found = {}
    for name in vendors:
        for gpu in module(name, "cluster").cluster_gpus(sysroot).gpus:
            nodes = [node.path.rpartition("/")[2] for node in (*gpu.unit.nodes, *gpu.unit.more_nodes)]
            found[name, gpu.unit.key] = frozenset((gpu.id, gpu.name, gpu.unit.key, *nodes))
    return found
