"""A process that has nearly all the descriptors that it may have."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open *count* files more, of at most 512."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 512), before[1]))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for fd in held[:count]:
        os.close(fd)
    try:
        yield
    finally:
        for fd in held[count:]:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
