"""Texts that are kept beside the tests, so that a change of what every container gets is seen as a difference and read."""

from __future__ import annotations

import os
from pathlib import Path

#: With this variable set, the kept texts are written anew.
VARIABLE = "UPDATE_GOLDEN"


def same_as_golden(file: Path, text: str) -> None:
    """Fails where *text* is not what *file* keeps; with UPDATE_GOLDEN=1 the file is written instead."""
    if os.environ.get(VARIABLE):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    kept = file.read_text() if file.exists() else ""
    assert text == kept, f"{file} differs; if that is meant, run this test with {VARIABLE}=1 and read the difference"
