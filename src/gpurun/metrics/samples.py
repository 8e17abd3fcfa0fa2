"""A figure of a GPU or a container, before it is anybody's format."""

from __future__ import annotations

from gpurun.record import Record


class Sample(Record):
    """One value.  *kind* is ``gauge`` or ``counter``; the name of a counter of ours ends in ``_total``."""

    name: str
    kind: str
    help: str
    labels: tuple[tuple[str, str], ...]
    value: float
