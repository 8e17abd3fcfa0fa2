"""One thing that is wrong with a document."""

from __future__ import annotations

from gpurun.record import Record


class Problem(Record):
    """A mistake, or with *fatal* False something that is only ignored, at the JSON path *where*."""

    where: str
    what: str
    fatal: bool = True
