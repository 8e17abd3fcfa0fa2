"""``run.oci.keep_original_groups``: a site whose GPU nodes are the group's alone, and a user who is in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.execs import FOREVER
from tests.native.runtime import Runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.not_on("runc", "it does not know the annotation"),
    pytest.mark.not_on("crun 1.8", "it gives the host's /dev/null away to the user namespace"),
]
VIDEO = 4444


@pytest.mark.parametrize("kept", [True, False])
def test_a_node_of_a_group(runtime: Runtime, bundle: MakeBundle, place: Path, kept: bool) -> None:
    """A node of a driver that is not there answers who may open it: ENXIO, and EACCES for all others."""
    node = place / "group-node"
    os.mknod(node, 0o20660, os.makedev(195, 250))
    os.chown(node, 0, VIDEO)
    node.chmod(0o660)
    try:
        b = bundle().sh(f"(: <>/dev/gpu) 2>&1; {FOREVER}").user_namespace().mount("/dev/gpu", str(node))
        b.linux["resources"]["devices"].append({"allow": True, "type": "c", "major": 195, "access": "rwm"})
        if kept:
            b.config["annotations"] = {"run.oci.keep_original_groups": "1"}
        said = "No such device or address" if kept else "Permission denied"

        def as_member() -> None:
            os.setgroups([VIDEO])

        container = runtime.start(b, preexec=as_member)
        assert said in container.wait_for("up")
        assert said in runtime("exec", container.id, "sh", "-c", "(: <>/dev/gpu) 2>&1", preexec=as_member).out
    finally:
        node.unlink()
