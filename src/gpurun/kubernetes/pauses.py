"""How long a part waits after a failure, so that the parts of a thousand nodes do not all come back at the same moment."""

from __future__ import annotations

import random


class Pauses:
    """How long to wait after each failure: seconds that double from *first_s* to *most_s*, times 0.5 to 1.5 at random."""

    def __init__(self, first_s: float = 1.0, most_s: float = 30.0) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._next_s = first_s

    def next(self) -> float:
        """The seconds to wait now: it has failed once more."""
        now, self._next_s = self._next_s, min(self._next_s * 2, self._most_s)
        return now * random.uniform(0.5, 1.5)

    def good(self) -> None:
        """It has succeeded: the next failure is a first one again."""
        self._next_s = self._first_s
