"""NVIDIA CVE-2025-23266: LD_PRELOAD of an image is in the environment of what runs as root for its GPUs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.compiled import compile_c
from tests.conftest import MakeBundle
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import SimulatedDriver

FOREVER = "while :; do sleep 0.02; done"
VARIABLES = ("LD_PRELOAD=/proc/self/cwd/evil.so", "LD_AUDIT=/proc/self/cwd/evil.so", "LD_LIBRARY_PATH=/proc/self/cwd")


@pytest.mark.native
@pytest.mark.gpurun_only
@pytest.mark.attack("NVIDIA CVE-2025-23266", "LD_PRELOAD of an image is in the environment of what is run for its GPUs")
def test_a_library_of_the_image_is_not_preloaded(
    runtime: Runtime, bundle: MakeBundle, leaks: Leaks, sim: SimulatedDriver, tmp_path: Path
) -> None:
    leaks.allow_rootfs_changes()
    owned = tmp_path / "owned"
    source = (
        "#include <fcntl.h>\n"
        f'__attribute__((constructor)) static void begin(void) {{ open("{owned}", O_CREAT | O_WRONLY, 0600); }}\n'
    )
    b = bundle().sh(FOREVER)
    library = compile_c(source, b.rootfs / "evil.so", "-shared", "-fPIC")
    subprocess.run(["/bin/true"], env={"LD_PRELOAD": str(library)}, check=True)
    assert owned.exists(), "the library does what it is to do"
    owned.unlink()
    b.process["env"] += [*VARIABLES, "PYTHONPATH=/proc/self/cwd", "NVIDIA_VISIBLE_DEVICES=all"]
    environment = ENVIRONMENT | sim.env
    container = runtime.create(b, env=environment, cwd=str(b.rootfs))
    container.start()
    runtime("exec", container.id, "true", env=environment, cwd=str(b.rootfs))
    assert not owned.exists()
