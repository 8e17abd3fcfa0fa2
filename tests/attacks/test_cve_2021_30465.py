"""CVE-2021-30465: a mount point of the image leads to the host, as a link from the start or exchanged for one meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.attacks.tools import attempt, exchanged, happens, replace
from tests.conftest import MakeBundle
from tests.forms import rounds
from tests.native.bed import Bed
from tests.native.listing import tree_listing
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

FOREVER = "while :; do sleep 0.02; done"


@pytest.mark.attack("CVE-2021-30465", "a mount point of the image is a link to a directory of the host")
@pytest.mark.parametrize(
    "link", ["{outside}/dir", "{up}{outside}/dir", "/../..{outside}/dir", "/proc/self/root{outside}/dir"]
)
def test_mount_target_behind_a_link(runtime: Runtime, bundle: MakeBundle, outside: Path, bed: Bed, link: str) -> None:
    """The link counts from the root of the image: the mount lands there or nowhere."""
    given = runtime.directory / "given"
    given.mkdir()
    (given / "inner").write_text("given\n")
    before = tree_listing(outside)
    b = bundle().args("cat", "/var/link/inner").mount("/var/link", str(given), "rbind", "rw")
    path = replace(b, "var/link", link.format(outside=outside, up="../" * 30))
    assert path.stat().st_ino == (outside / "dir").stat().st_ino, "who follows the link is on the host"
    attempt(runtime, b)
    assert tree_listing(outside) == before
    assert not [line for line in bed.mounts() if str(outside) in line]


@pytest.mark.attack("CVE-2021-30465", "a mount point changes places with a link to a directory of the host")
def test_mount_target_becomes_a_link(runtime: Runtime, bundle: MakeBundle, outside: Path, bed: Bed) -> None:
    given = runtime.directory / "given"
    (given / "sub").mkdir(parents=True)
    (given / "sub/of the volume").touch()
    b = bundle().sh(FOREVER)
    target, link = b.rootfs / "var/target", b.rootfs / "var/link"
    target.mkdir()
    link.symlink_to(outside / "dir")
    b.mount("/var/target", str(given / "sub"), "bind")
    made = 0
    with exchanged(target, link):
        assert happens(lambda: os.path.samefile(target, outside / "dir")), "now and then it leads to the host"
        for _ in range(rounds(20)):
            container = runtime.create(b, check=False)
            if container.result.rc:
                continue
            made += 1
            container.delete("--force")
            container.wait()
            assert not [line for line in bed.mounts() if str(outside) in line]
            assert not list((outside / "dir").iterdir()), "the volume is on the host"
    print(f"{made} of {rounds(20)} containers were made")
