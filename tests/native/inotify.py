"""What inotify(7) tells of files without a name of their own in the events: one mask for each event."""

from __future__ import annotations

import os
import select
from struct import iter_unpack


def masks(fd: int) -> list[int]:
    """The masks of all that there is to read of the inotify descriptor *fd*; does not wait."""
    found: list[int] = []
    while select.select([fd], [], [], 0)[0]:
        # struct inotify_event has 16 bytes where there is no name
        found += [mask for _, mask, _, _ in iter_unpack("iIII", os.read(fd, 1 << 16))]
    return found
