"""What gpurun keeps to spare work is not in the state root, where others take each directory for a container."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.conftest import MakeBundle
from tests.lifecycle.test_seccomp import MKDIR, rule, under
from tests.native.runtime import ENVIRONMENT, Runtime

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def test_the_root_has_containers_alone(runtime: Runtime, bundle: MakeBundle) -> None:
    container = runtime.start(under(bundle().args("sleep", "60"), rule("ERRNO", *MKDIR)))
    assert os.listdir(runtime.root) == [container.id]
    assert (runtime.root.parent / f".{runtime.root.name}.seccomp").is_dir()


@pytest.mark.skipif(shutil.which("runc") is None, reason="runc is not installed")
def test_runc_on_the_same_root_finds_nothing_strange(runtime: Runtime, bundle: MakeBundle) -> None:
    assert runtime.run(under(bundle().args("true"), rule("ERRNO", *MKDIR))).rc == 0
    listed = subprocess.run(
        ["runc", "--root", str(runtime.root), "list", "--quiet"], capture_output=True, text=True, env=ENVIRONMENT, timeout=60
    )
    assert (listed.returncode, listed.stdout, listed.stderr) == (0, "", "")
