"""Records: what their metaclass makes of a class, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpurun.record import Record, _RecordMeta

SOURCE = Path(__file__).resolve().parents[1] / "src"


def test_fields_slots_and_defaults() -> None:
    class Specimen(Record):
        a: int
        b: str = "x"

    assert Specimen._fields == ("a", "b") and Specimen(1) == Specimen(a=1, b="x") and not hasattr(Specimen(1), "__dict__")
    with pytest.raises(TypeError, match="needs the field a"):
        Specimen()  # type: ignore[call-arg]


@pytest.mark.parametrize("key", ["__annotate_func__", "__annotate__"])
def test_annotations_that_would_be_made_later_are_refused(key: str) -> None:
    # What the compiler of Python 3.14 leaves in the namespace of a class (PEP 649); __annotate__ in its early versions.
    def annotate(form: int) -> dict[str, Any]:
        return {"a": int}

    with pytest.raises(TypeError, match=r"some\.module needs `from __future__ import annotations`: without it Lazy"):
        _RecordMeta("Lazy", (Record,), {"__module__": "some.module", key: annotate})


def test_a_module_without_the_future_import() -> None:
    """On Python 3.14 it is refused; before that its annotations are there, and it works."""
    text = "from gpurun.record import Record\nclass Lazy(Record):\n    a: int\nprint(Lazy(1))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=SOURCE, timeout=60)
    if sys.version_info >= (3, 14):
        assert done.returncode != 0 and "needs `from __future__ import annotations`" in done.stderr
    else:
        assert done.stdout == "Lazy(a=1)\n", done.stderr
