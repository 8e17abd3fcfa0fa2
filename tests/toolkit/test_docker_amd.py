"""Docker with a runtime that is called amd-container-runtime, asked by the variable that ``--gpus`` of Docker 28.3 sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.bed import IMAGE, ClientBed, ClientBedUnavailable
from tests.needs_nodes import require_nodes
from tests.simcards import RENDER, VIDEO, amd

pytestmark = [pytest.mark.clients, pytest.mark.native]

LOOK = "ls /dev/dri 2>/dev/null; ls /dev/kfd 2>/dev/null; echo groups $(id -G)"


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory, names: Path) -> Iterator[ClientBed]:
    host = amd.mi210(tmp_path_factory.mktemp("amd") / "host", count=2)
    require_nodes(host.real_nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{names}:{os.environ['PATH']}")
        try:
            runtimes = {"amd": str(names / "amd-container-runtime"), "own": str(names / "gpurun")}
            made = ClientBed(runtimes, tmp_path_factory.mktemp("docker"), host.path)
        except ClientBedUnavailable as e:
            pytest.skip(str(e))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("value", "renders"),
    [("all", {"renderD128", "renderD129"}), ("0", {"renderD129"}), ("0,1,2", {"renderD128", "renderD129"}), ("void", set())],
)
def test_what_gpus_asks_for(docker: ClientBed, value: str, renders: set[str]) -> None:
    """``all``, ``1`` and a count that is more than there are, as dockerd writes them; a count of 0 is void."""
    words = ("--runtime", "amd", "-e", f"AMD_VISIBLE_DEVICES={value}", IMAGE, "sh", "-c", LOOK)
    done = docker.run("docker", "run", "--rm", *words)
    assert done.rc == 0, done.text
    found, _, groups = done.out.partition("groups ")
    assert {word for word in found.split() if word.startswith("renderD")} == renders
    assert ("/dev/kfd" in found) == bool(renders)
    assert ({str(VIDEO), str(RENDER)} <= set(groups.split())) == bool(renders)


def test_a_count_that_is_too_large_is_refused_under_gpuruns_own_name(docker: ClientBed) -> None:
    done = docker.run("docker", "run", "--rm", "--runtime", "own", "-e", "AMD_VISIBLE_DEVICES=0,1,2", IMAGE, "true")
    assert done.rc != 0 and "2: unknown device" in done.text
