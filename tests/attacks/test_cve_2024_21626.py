"""CVE-2024-21626 ("Leaky Vessels"): a working directory by a descriptor of the host's that the runtime has left open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.attack("CVE-2024-21626", "a working directory by a descriptor of the host's"),
]

MARKER = "etc/debian_version"
SCRIPT = f"ls {MARKER} ../{MARKER} ../../{MARKER} ../../../{MARKER}"
FOREVER = "while :; do sleep 0.02; done"


@pytest.fixture
def host() -> Iterator[int]:
    """A descriptor of the host's root that the runtime's caller has left it."""
    if not os.path.exists(f"/{MARKER}"):
        pytest.skip(f"this host has no /{MARKER} to look for")
    fd = os.open("/", os.O_RDONLY)
    assert os.path.exists(f"/proc/self/fd/{fd}/{MARKER}"), "the descriptor leads to the host's tree"
    yield fd
    os.close(fd)


@pytest.mark.parametrize("fd", range(3, 12))
def test_create(runtime: Runtime, bundle: MakeBundle, host: int, fd: int) -> None:
    b = bundle().sh(SCRIPT)
    b.process["cwd"] = f"/proc/self/fd/{fd}"
    container = runtime.create(b, check=False, pass_fds=[host])
    if container.result.rc == 0:
        container.start()
        container.wait()
    assert f"{MARKER}\n" not in container.out


@pytest.mark.sweep(4)
@pytest.mark.parametrize("fd", range(3, 12))
def test_exec(runtime: Runtime, bundle: MakeBundle, host: int, fd: int) -> None:
    container = runtime.start(bundle().sh(FOREVER))
    result = runtime("exec", "--cwd", f"/proc/self/fd/{fd}", container.id, "sh", "-c", SCRIPT, pass_fds=[host])
    assert f"{MARKER}\n" not in result.out


def test_the_image_leads_there(runtime: Runtime, bundle: MakeBundle, leaks: Leaks, host: int) -> None:
    """A link in the image, which is only followed when the working directory is entered."""
    leaks.allow_rootfs_changes()
    container = runtime.start(bundle().sh(FOREVER))
    for fd in range(3, 12):
        Path(container.bundle.rootfs / f"tmp/{fd}").symlink_to(f"/proc/self/fd/{fd}")
        result = runtime("exec", "--cwd", f"/tmp/{fd}", container.id, "sh", "-c", SCRIPT, pass_fds=[host])
        assert f"{MARKER}\n" not in result.out
