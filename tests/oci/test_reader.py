"""JSON as the engine reads it."""

from __future__ import annotations

import pytest

from gpurun.errors import ConfigError
from gpurun.oci.reader import parse_json


@pytest.mark.parametrize("half", ["\\ud800", "\\uDBFF", "\\udc80", "\\udfff"])
def test_half_of_a_surrogate_pair_is_the_replacement_character(half: str) -> None:
    """As Go's encoding/json has it: no file and no program's arguments could hold it."""
    found = parse_json(f'{{"a{half}": ["b{half}c", {{"d": "{half}{half}"}}, 5, null]}}'.encode(), "config.json")
    assert found == {"a\ufffd": ["b\ufffdc", {"d": "\ufffd\ufffd"}, 5, None]}


def test_a_whole_pair_and_what_only_looks_like_one() -> None:
    assert parse_json(b'["\\ud83d\\ude00", "\\\\ud800"]', "x") == ["\U0001f600", "\\ud800"]


def test_nested_too_deeply() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        parse_json(b"[" * 100_000, "x")
