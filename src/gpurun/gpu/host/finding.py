"""One thing that the doctor looked at."""

from __future__ import annotations

from gpurun.record import Record


class Finding(Record):
    """*verdict* is ``ok``, ``note`` (works, but) or ``fail``; *text* says what was found and what to do."""

    subject: str
    verdict: str
    text: str
