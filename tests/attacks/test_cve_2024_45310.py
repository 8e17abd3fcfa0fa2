"""CVE-2024-45310: the directories and the files of a mount point are made on the host, behind a link of the image."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.attacks.tools import attempt, exchanged, happens, replace
from tests.conftest import MakeBundle
from tests.forms import rounds
from tests.native.listing import tree_listing
from tests.native.runtime import Runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.attack("CVE-2024-45310", "directories and files of a mount point are made on the host"),
]


@pytest.mark.parametrize("kind", ["tmpfs", "bind"])
def test_missing_mount_target_below_a_link(runtime: Runtime, bundle: MakeBundle, outside: Path, kind: str) -> None:
    before = tree_listing(outside)
    b = bundle().args("true")
    link = replace(b, "var/link", outside / "dir")
    assert os.path.realpath(link) == str(outside / "dir")
    b.mount("/var/link/new/dirs", "tmpfs" if kind == "tmpfs" else "/usr", *(["bind"] if kind == "bind" else []), kind=kind)
    attempt(runtime, b)
    assert tree_listing(outside) == before


def test_mount_file_target_is_a_link(runtime: Runtime, bundle: MakeBundle, outside: Path) -> None:
    before = tree_listing(outside)
    b = bundle().args("true").mount("/etc/resolv.conf", "/etc/passwd", "bind", "ro")
    link = replace(b, "etc/resolv.conf", outside / "made")
    assert os.path.realpath(link) == str(outside / "made")
    attempt(runtime, b)
    assert tree_listing(outside) == before


@pytest.mark.falls("runc 1.1.", reason="the directories are made on the host, now and then", always=False)
def test_a_parent_becomes_a_link(runtime: Runtime, bundle: MakeBundle, outside: Path) -> None:
    """Who shares the volume exchanges the parent of what is to be made for a link, as in the report."""
    b = bundle().args("true")
    volume = b.directory / "volume"
    (volume / "parent").mkdir(parents=True)
    (volume / "link").symlink_to(outside / "dir")
    b.mount("/var", str(volume), "bind")
    for number in range(5):
        b.mount(f"/var/parent/{number}/deep", "tmpfs", kind="tmpfs")
    before = tree_listing(outside)
    with exchanged(volume / "parent", volume / "link"):
        assert happens(lambda: os.path.samefile(volume / "parent", outside / "dir"))
        for _ in range(rounds(15)):
            container = runtime.create(b, check=False)
            if container.result.rc == 0:
                container.delete("--force")
                container.wait()
    assert tree_listing(outside) == before
