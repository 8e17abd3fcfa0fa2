"""NVIDIA CVE-2025-23267: the hook that updates the loader's cache follows a link of the image, and writes on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.tools import exchanged, happens
from tests.conftest import MakeBundle
from tests.native.listing import tree_listing
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import SimulatedDriver

pytestmark = [
    pytest.mark.native,
    pytest.mark.gpurun_only,
    pytest.mark.attack("NVIDIA CVE-2025-23267", "the loader's files of the image are links, and the host's are written"),
]

FOREVER = "while :; do sleep 0.02; done"
NAMES = ["etc/ld.so.cache", "etc/ld.so.cache~", "etc/ld.so.conf", "etc/ld.so.conf.d/00-gpurun.conf"]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("race", [False, True], ids=["a link", "a link now and then"])
def test_a_file_of_the_loader(
    runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver, outside: Path, name: str, race: bool
) -> None:
    b = bundle().sh(FOREVER)
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all"]
    path = b.rootfs / name
    path.parent.mkdir(parents=True, exist_ok=True)
    victim = outside / "file"
    link = path if not race else path.with_name("link")
    link.symlink_to(victim)
    assert link.read_text() == "of the host\n", "who writes to the link writes on the host"
    before = tree_listing(outside, exact=True)
    environment = ENVIRONMENT | sim.env
    if not race:
        runtime.create(b, check=False, env=environment).delete("--force")
    else:
        path.touch()
        with exchanged(path, link):
            assert happens(path.is_symlink)
            for _ in range(10):
                container = runtime.create(b, check=False, env=environment)
                container.delete("--force")
                if container.result.rc == 0:
                    container.wait()
    assert tree_listing(outside, exact=True) == before
