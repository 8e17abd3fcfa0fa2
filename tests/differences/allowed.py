"""The differences that are allowed: ``allowed.txt`` has a line for each, with its reason.

    PEER | WHERE | CONFIG | KEY | OURS | REASON

A star stands for any text: which peer (name and version, ``runc 1.1*``), where it was seen (``init``, ``exec``, ``host``),
under which config, which key, and what gpurun's process sees.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("allowed.txt")


class Line(NamedTuple):
    number: int
    patterns: tuple[re.Pattern[str], ...]
    reason: str


def pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.S)


def read(text: str) -> tuple[Line, ...]:
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        *patterns, reason = (word.strip() for word in line.split("|"))
        assert len(patterns) == 5 and len(reason) > 10, f"{FILE.name}:{number}: a pattern or the reason is missing"
        lines.append(Line(number, tuple(map(pattern, patterns)), reason))
    return tuple(lines)


def allowing(lines: tuple[Line, ...], *words: str) -> list[int]:
    """The numbers of the lines that allow the difference (peer, where, config, key, ours)."""
    return [line.number for line in lines if all(p.fullmatch(w) for p, w in zip(line.patterns, words, strict=True))]
