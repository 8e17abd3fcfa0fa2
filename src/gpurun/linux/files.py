"""Reading and writing whole files, without a foreign call: ``state``, ``start``, ``kill`` and ``delete`` need no more."""

from __future__ import annotations

import posix

O_CLOEXEC = posix.O_CLOEXEC


def read_file(path: str, limit: int = 1 << 20, dir_fd: int | None = None) -> bytes:
    """The content of a small file, at most *limit* bytes; raises OSError with the path in it."""
    fd = posix.open(path, posix.O_RDONLY | O_CLOEXEC, dir_fd=dir_fd)
    try:
        return read_fd(fd, limit)
    finally:
        posix.close(fd)


def read_fd(fd: int, limit: int = 1 << 20) -> bytes:
    """All that can be read from *fd*, at most *limit* bytes."""
    chunks: list[bytes] = []
    while limit > 0:
        chunk = posix.read(fd, min(limit, 1 << 16))
        if not chunk:
            break
        chunks.append(chunk)
        limit -= len(chunk)
    return b"".join(chunks)


def write_all(fd: int, data: bytes) -> None:
    """Write all of *data*."""
    view = memoryview(data)
    while view:
        view = view[posix.write(fd, view) :]
