"""`explain --running ID`: what was done for a container that there is, and what has changed of it since."""

from __future__ import annotations

import json

import pytest

from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def test_through_its_life(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().args("sleep", "60")
    container = runtime.create(b)
    said = runtime("explain", "--running", container.id)
    assert said.rc == 0, said
    first, *rest = said.out.splitlines()
    assert first.startswith(f"container {container.id}: created, process {container.pid}, created 2")
    assert any("sleep" in line for line in rest)
    assert not any(line.startswith("since changed") for line in rest)
    assert container.start().rc == 0
    assert f"container {container.id}: running, process {container.pid}" in runtime("explain", "--running", container.id).out
    told = json.loads(runtime("explain", "--json", "--running", container.id).out)
    assert (told["status"], told["pid"], told["changed"]) == ("running", container.pid, [])
    container.kill("KILL")
    container.wait()
    said = runtime("explain", "--running", container.id)
    assert said.out.startswith(f"container {container.id}: stopped, created 2"), "it has no process any more"


def test_the_config_of_its_creation_counts(runtime: Runtime, bundle: MakeBundle) -> None:
    """Not what the bundle says by now."""
    b = bundle().args("sleep", "60")
    container = runtime.create(b)
    (b.directory / "config.json").write_text("{}")
    said = runtime("explain", "--running", container.id)
    assert said.rc == 0 and "sleep" in said.out


def test_what_cannot_be_asked(runtime: Runtime, bundle: MakeBundle) -> None:
    said = runtime("explain", "--running", "nobody")
    assert said.rc == 1 and "container does not exist" in said.text
    container = runtime.create(bundle().args("sleep", "60"))
    said = runtime("explain", "--running", container.id, "/tmp")
    assert said.rc != 0 and "one bundle, or --diff with two, or --running with the id of a container" in said.text
