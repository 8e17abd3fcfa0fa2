"""The record of what install has changed, where it cannot be read."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gpurun import log
from gpurun.clients import files, ledger


def test_a_record_that_cannot_be_read_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(log, "warning", said.append)
    monkeypatch.setattr(ledger, "_path", lambda: str(tmp_path))

    def closed(path: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(files, "read", closed)
    assert ledger.entries() == ()
    (text,) = said
    assert text.startswith(f"{tmp_path}, the record of what `install` has changed, cannot be read") and "Errno" not in text
    assert text.endswith(": permission denied")
