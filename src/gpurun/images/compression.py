"""Streams without their compression, told by their first bytes: gzip, bzip2, xz, zstd."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import zlib
from typing import IO

from gpurun.errors import GpurunError

#: What reading a damaged stream raises, beside OSError.
DAMAGED: tuple[type[Exception], ...] = (EOFError, zlib.error, lzma.LZMAError)
try:
    from compression.zstd import ZstdError  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # before Python 3.14
    pass
else:
    DAMAGED += (ZstdError,)


def decompressed(opened: IO[bytes], where: str) -> IO[bytes]:
    """*opened* itself, at its beginning, or a stream of what is compressed in it.  Raises :class:`GpurunError`."""
    magic = opened.read(6)
    opened.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=opened, mode="rb")  # type: ignore[return-value]
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(opened, "rb")
    if magic.startswith(b"\xfd7zXZ"):
        return lzma.LZMAFile(opened, "rb")
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstd(opened, where)
    return opened


def _zstd(opened: IO[bytes], where: str) -> IO[bytes]:
    """By the standard library from Python 3.14 on, else by zstd(1)."""
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        program = shutil.which("zstd", path="/usr/local/bin:/usr/bin:/bin")
        if program is None:
            raise GpurunError(f"{where} is compressed by zstd, which is not installed (`apt-get install zstd`)") from None
        return _Program([program, "-dcq"], opened, where)  # type: ignore[return-value] # reads and closes
    stream: IO[bytes] = zstd.ZstdFile(opened, "rb")
    return stream


class _Program(io.RawIOBase):  # type: ignore[misc,unused-ignore]
    """What a program makes of a file; reading to the end raises where it has failed."""

    def __init__(self, words: list[str], opened: IO[bytes], where: str) -> None:
        self._process = subprocess.Popen(words, stdin=opened, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._where = where

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if not data and size and self._process.wait():
            raise GpurunError(f"{self._where}: zstd cannot read it: it is damaged")
        return data

    def close(self) -> None:
        if not self.closed and self._process.stdout is not None:
            self._process.stdout.close()
            self._process.wait()
        super().close()
