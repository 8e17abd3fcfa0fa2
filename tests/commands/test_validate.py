"""validate: a bundle, or its config.json itself, is named; each mistake says of which file it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpurun.cli.parse import parse
from gpurun.commands.validate import validate
from gpurun.errors import GpurunError
from gpurun.library.bundle import Bundle
from gpurun.oci.default_spec import default_spec
from tests.deadline import within


@pytest.mark.parametrize("named", [".", "config.json"])
def test_the_file_may_be_named_as_well(named: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = default_spec(False, 0, 0) | {"root": {"path": "nosuch"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert validate(parse(["validate", str(tmp_path / named)])) == 1
    said = capfd.readouterr().out
    assert f'"{tmp_path}/nosuch" is not a directory' in said


def test_a_document_that_is_no_object(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("[]")
    assert validate(parse(["validate", str(tmp_path)])) == 1
    assert capfd.readouterr().out == f"{tmp_path}/config.json: must be an object, not an array\n"


@pytest.mark.parametrize("what", ["a FIFO", "a file without an end"])
def test_a_file_that_is_never_read_to_its_end(what: str, tmp_path: Path) -> None:
    """A bundle is somebody else's: who looks at it does not wait for good, and reads no more than create would."""
    if what == "a FIFO":
        os.mkfifo(tmp_path / "config.json")
    else:
        (tmp_path / "config.json").symlink_to("/dev/zero")
    said = "is a FIFO and not a file" if what == "a FIFO" else "is larger than 16 MiB"
    with within(60):
        for look in (lambda: validate(parse(["validate", str(tmp_path)])), lambda: Bundle.load(tmp_path)):
            with pytest.raises(GpurunError, match=f"{tmp_path}/config.json: {said}"):
                look()
