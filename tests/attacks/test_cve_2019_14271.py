"""CVE-2019-14271: modules and libraries of the image are loaded by the runtime after it has entered the rootfs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import MakeBundle
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime

MODULES = ("os", "encodings", "json", "traceback", "linecache", "pwd", "sitecustomize", "gpurun")
DIRECTORIES = ("", "usr/lib/python3", "usr/lib/python3.11", "usr/lib/python3.13", "lib", "usr/lib")


@pytest.mark.native
@pytest.mark.attack("CVE-2019-14271", "modules and libraries of the image are loaded by the runtime")
def test_nothing_of_the_image_is_imported(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    """What a late import or NSS would load from the image is given as traps."""
    leaks.allow_rootfs_changes()
    b = bundle().args("echo", "hi")
    trap = "import os\nos.write(2, b'TRAPPED')\n"
    for directory in DIRECTORIES:
        path = b.rootfs / directory
        path.mkdir(parents=True, exist_ok=True)
        for module in MODULES:
            (path / f"{module}.py").write_text(trap)
    command = [sys.executable, "-S", "-c", "import linecache"]
    sprung = subprocess.run(command, env={"PYTHONPATH": str(b.rootfs / "lib")}, capture_output=True, text=True, check=False)
    assert "TRAPPED" in sprung.stderr, "who imports from there is trapped"
    result = runtime.run(b)
    assert result == (0, "hi\n", "")
    failing = runtime.create(b.args("/etc/passwd"), check=False)
    assert "TRAPPED" not in failing.err
    container = runtime.create(b.args("/usr/data"), check=False)
    if container.result.rc == 0:
        container.start()
        container.wait()
    assert "TRAPPED" not in container.err
