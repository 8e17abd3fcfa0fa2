"""``--regex``: a pattern in the place of an id, for people (crun's option)."""

from __future__ import annotations

import posix
import re

from gpurun.errors import GpurunError


def matching_ids(root: str, pattern: str) -> tuple[str, ...]:
    """The ids of the containers under *root* that the regular expression *pattern* matches somewhere (crun's --regex)."""
    try:
        matches = re.compile(pattern).search
    except re.error as e:
        raise GpurunError(f'--regex: "{pattern}" is no regular expression: {e}') from None
    try:
        return tuple([name for name in sorted(posix.listdir(root)) if not name.startswith(".") and matches(name)])
    except FileNotFoundError:
        return ()
