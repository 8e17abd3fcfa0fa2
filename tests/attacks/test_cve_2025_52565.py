"""CVE-2025-52565: /dev/console or /dev/pts/ptmx of the image leads elsewhere, and the terminal is mounted there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.attacks.tools import exchanged, happens
from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import Container, Runtime
from tests.native.terminal import Listener

pytestmark = pytest.mark.native

FOREVER = "while :; do sleep 0.02; done"


def terminals(container: Container) -> list[str]:
    """Where the container has a devpts mounted; nowhere when its process has ended."""
    try:
        lines = container.proc("mountinfo").read_text().splitlines()
    except OSError:  # EINVAL while it ends
        return []
    return [line.split()[4] for line in lines if " - devpts " in line]


@contextmanager
def with_terminal(runtime: Runtime, bundle: Bundle) -> Iterator[Container]:
    """``create`` of *bundle* with a terminal, whether or not it is refused; while it is open nothing ends the process."""
    bundle.process["terminal"] = True
    listener = Listener(runtime.directory / "console.sock")
    masters: list[int] = []
    try:
        container = runtime.create(bundle, "--console-socket", str(listener.path), check=False)
        if container.result.rc == 0:
            masters = listener.message()[1]
        yield container
    finally:
        for fd in masters:
            os.close(fd)
        listener.socket.close()
        listener.path.unlink()


@pytest.mark.falls(
    "runc 1.1.", reason="the terminal is mounted on a sysctl of the host's, whose read-only mount it hides", always=False
)
@pytest.mark.attack("CVE-2025-52565", "/dev/console of the image is a link into procfs, and the terminal is mounted there")
@pytest.mark.parametrize("target", ["/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/sys/kernel/mm"])
def test_the_console_is_not_mounted_in_procfs(runtime: Runtime, bundle: MakeBundle, leaks: Leaks, target: str) -> None:
    leaks.allow_rootfs_changes()
    b = bundle().sh(FOREVER)
    b.config["mounts"] = [m for m in b.config["mounts"] if m["destination"] != "/dev"]
    (b.rootfs / "dev/console").symlink_to(target)
    assert os.path.exists(target), "the link leads to a file that a container would like covered"
    with with_terminal(runtime, b) as container:
        if container.result.rc == 0:
            found = terminals(container)
            assert found and target not in found


@pytest.mark.attack("CVE-2025-52565", "/dev/console of the image becomes a link to the host meanwhile")
def test_the_console_becomes_a_link(runtime: Runtime, bundle: MakeBundle, outside: Path) -> None:
    b = bundle().sh(FOREVER)
    b.config["mounts"] = [m for m in b.config["mounts"] if not m["destination"].startswith("/dev")]
    volume = b.directory / "volume"
    (volume / "pts").mkdir(parents=True)
    (volume / "console").touch()
    (volume / "link").symlink_to("/proc/sys/kernel/core_pattern")
    b.mount("/dev", str(volume), "bind")
    b.mount("/dev/pts", "devpts", "newinstance", "ptmxmode=0666", "mode=0620", kind="devpts")
    made = 0
    with exchanged(volume / "console", volume / "link"):
        assert happens((volume / "console").is_symlink)
        for _ in range(10):
            with with_terminal(runtime, b) as container:
                if container.result.rc:
                    continue
                found = terminals(container)
                container.delete("--force")
                container.wait()
            assert found and not [point for point in found if point.startswith(("/proc", "/sys"))]
            made += 1
    print(f"{made} of 10 containers were made")
