"""The samples over HTTP, by prometheus_client, which knows the formats that Prometheus asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import Metric

from gpurun.metrics.samples import Sample
from gpurun.output import one_line


class _Collector:
    """What prometheus_client asks at each scrape."""

    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        yield from families(self._read())

    def describe(self) -> Iterator[Metric]:
        """None: asking costs a look at the GPUs, and there is no other metric to collide with."""
        return iter(())


def families(samples: Iterable[Sample]) -> list[Metric]:
    """The samples by their names.

    The name of a counter ends in ``_total`` or the format calls it something else: dcgm's do not, and are of no stated type.
    """
    found: dict[str, Metric] = {}
    for sample in samples:
        name, kind = sample.name, sample.kind
        if kind == "counter":
            name, kind = (name.removesuffix("_total"), kind) if name.endswith("_total") else (name, "unknown")
        family = found.setdefault(sample.name, Metric(name, sample.help, kind))
        family.add_sample(sample.name, {name: one_line(value) for name, value in sample.labels}, sample.value)
    return list(found.values())


def application(read: Callable[[], Iterable[Sample]]) -> Any:
    """The WSGI application that answers every path with what *read* gives now, and /healthz with ``ok``."""
    metrics = make_wsgi_app(_registry(read))

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != "/healthz":
            return list(metrics(environ, start))
        start("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"ok\n"]

    return answer


def text(read: Callable[[], Iterable[Sample]]) -> str:
    """The same as a text."""
    return generate_latest(_registry(read)).decode()


def _registry(read: Callable[[], Iterable[Sample]]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Collector(read))
    return registry
