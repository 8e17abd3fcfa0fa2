"""CVE-2026-41579: device nodes and links are made wherever /dev of the image leads to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.attacks.tools import attempt, replace
from tests.conftest import MakeBundle
from tests.native.listing import tree_listing
from tests.native.runtime import Runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.attack("CVE-2026-41579", "/dev of the image is a link to a directory of the host"),
]


@pytest.mark.falls("runc 1.1.", reason="links and nodes are made in the host's directory")
@pytest.mark.parametrize("mounted", [True, False], ids=["a mount on /dev", "no mount on /dev"])
@pytest.mark.parametrize("target", ["{outside}/dir", "../../outside/dir"])
def test_dev_as_a_link(runtime: Runtime, bundle: MakeBundle, outside: Path, target: str, mounted: bool) -> None:
    before = tree_listing(outside)
    b = bundle().args("ls", "/")
    if not mounted:
        b.config["mounts"] = [m for m in b.config["mounts"] if not m["destination"].startswith("/dev")]
    link = replace(b, "dev", target.format(outside=outside))
    b.rootfs.joinpath("mark").touch()
    assert os.path.isdir(link), "who follows the link is on the host"
    attempt(runtime, b)
    assert tree_listing(outside) == before
