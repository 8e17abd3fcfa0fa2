"""What Podman calls a container whose monitor has ended: its storage says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpurun.gpu.leases.names import Known, of_container, of_podman

ID = "ab" * 32


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    made = tmp_path / "overlay-containers" / ID / "userdata"
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize("file", ["containers.json", "volatile-containers.json"])
def test_the_name_is_that_of_the_storage(bundle: Path, file: str) -> None:
    others = [{"id": "cd" * 32, "names": ["other"]}, {"id": ID, "names": ["web", "alias"]}]
    (bundle.parents[1] / file).write_text(json.dumps(others))
    assert of_podman(ID, str(bundle)) == "web"
    assert of_container(ID, {}, (), 0, str(bundle)) == Known("web", "Podman")
    assert of_podman("ef" * 32, str(bundle)) == ""


DAMAGED = ("", "[", "{}", "[1]", json.dumps([{"id": ID}]), json.dumps([{"id": ID, "names": [1]}]))


@pytest.mark.parametrize("text", DAMAGED)
def test_what_cannot_be_read_is_no_name(bundle: Path, text: str) -> None:
    (bundle.parents[1] / "containers.json").write_text(text)
    assert of_podman(ID, str(bundle)) == "" and of_container(ID, {}, (), 0, str(bundle)) == Known()


def test_another_bundle_is_not_looked_beside(tmp_path: Path) -> None:
    (tmp_path / "containers.json").write_text(json.dumps([{"id": "c", "names": ["n"]}]))
    assert of_podman("c", str(tmp_path / "c")) == of_podman("c", "") == ""
