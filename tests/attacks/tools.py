"""What several attacks need: links of an image, two names that change places all the time, and who opens a file."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.native.bundle import Bundle
from tests.native.inotify import masks
from tests.native.runtime import Runtime

LOOP_CONTROL = os.makedev(10, 237)  # a device that no container of these tests may open
_IN_OPEN = 0x20
#: Exchanges two names (renameat2(2), RENAME_EXCHANGE) until it is told to end; an even number of times.
_EXCHANGE = """
import ctypes, signal, sys, time
libc = ctypes.CDLL(None)
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
one, other = sys.argv[1].encode(), sys.argv[2].encode()
print("ready", flush=True)
while not over:
    for _ in range(2):
        if libc.renameat2(-100, one, -100, other, 2):
            sys.exit("renameat2 does not work")
        time.sleep(0.00001)
"""


@contextmanager
def exchanged(one: Path, other: Path) -> Iterator[subprocess.Popen[str]]:
    """*one* and *other* change places all the time, as a hostile process would have them."""
    process = subprocess.Popen([sys.executable, "-c", _EXCHANGE, one, other], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()


@contextmanager
def opens(path: Path) -> Iterator[list[int]]:
    """What inotify(7) tells of open(2) on *path*: a mask for each; to be read after the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _IN_OPEN) >= 0
    opened: list[int] = []
    try:
        yield opened
        opened += [mask for mask in masks(fd) if mask & _IN_OPEN]  # IN_IGNORED comes when the node has been taken away
    finally:
        os.close(fd)


def replace(b: Bundle, name: str, target: str | Path) -> Path:
    """The image has a link *name* to *target* instead of what was there."""
    path = b.rootfs / name
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    elif path.exists() or path.is_symlink():
        path.unlink()
    path.symlink_to(target)
    return path


def attempt(runtime: Runtime, b: Bundle, *options: str) -> str:
    """Run *b* or be refused; either is right.  All that was said."""
    container = runtime.create(b, *options, check=False)
    if container.result.rc == 0:
        container.start()
        container.wait()
    return container.out + container.err


def happens(look: Callable[[], bool], timeout: float = 20) -> bool:
    """Whether *look* is true at some moment within *timeout* seconds: for what changes all the time."""
    end = time.monotonic() + timeout
    while not look():
        if time.monotonic() > end:
            return False
    return True
