"""Every field of config.json with a value of every wrong type, given to the reader alone: no root, nothing made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpurun.errors import ConfigError
from gpurun.oci.config import read_config
from tests.faults.full_config import MAPS, PATHS, Path, full_config, json_path, replaced, walk, wrong_values


def read(config: Any) -> Any:
    return read_config(json.dumps(config).encode())


def test_the_full_config_is_right() -> None:
    """Else the tests below would find any mistake but theirs."""
    read(full_config())


@pytest.mark.parametrize("path", PATHS, ids=json_path)
def test_wrong_type(path: Path) -> None:
    right = next(value for p, value in walk(full_config()) if p == path)
    for wrong in wrong_values(right):
        with pytest.raises(ConfigError) as caught:
            read(replaced(full_config(), path, wrong))
        assert caught.value.where == json_path(path), f"{json_path(path)} = {wrong!r}"


@pytest.mark.parametrize("path", [p for p, v in walk(full_config()) if type(v) is int], ids=json_path)
@pytest.mark.parametrize("number", [1 << 64, -(1 << 63) - 1])
def test_numbers_beyond_64_bits(path: Path, number: int) -> None:
    with pytest.raises(ConfigError) as caught:
        read(replaced(full_config(), path, number))
    assert caught.value.where == json_path(path)


@pytest.mark.parametrize(
    "path", [p for p, v in walk(full_config()) if type(v) is str and p[0] != "ociVersion"], ids=json_path
)
def test_null_bytes(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(replaced(full_config(), path, "a\0b"))
    assert caught.value.where == json_path(path)


@pytest.mark.parametrize("path", [p for p in PATHS if not isinstance(p[-1], int) and p[:-1] not in MAPS], ids=json_path)
def test_null_is_absent(path: Path) -> None:
    """Go writes null for what it has not: the answer must be the one for a missing field."""
    missing = full_config()
    target: Any = missing
    for step in path[:-1]:
        target = target[step]
    del target[path[-1]]
    answers = []
    for config in (replaced(full_config(), path, None), missing):
        try:
            answers.append(read(config))
        except ConfigError as e:
            answers.append(str(e))
    assert answers[0] == answers[1]
