"""CVE-2025-31133: /dev/null of the image is a link, and what it leads to is mounted over the masked paths, to be
written to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.tools import attempt, exchanged, happens, replace
from tests.conftest import MakeBundle
from tests.forms import rounds
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

MASKED = "/proc/timer_list"


def with_its_own_dev(b: Bundle) -> Bundle:
    b.config["mounts"] = [m for m in b.config["mounts"] if not m["destination"].startswith("/dev")]
    b.linux["readonlyPaths"] = []
    return b


@pytest.mark.attack("CVE-2025-31133", "/dev/null of the image is a link, and masked paths are covered with it")
def test_null_device_as_a_link(runtime: Runtime, bundle: MakeBundle, outside: Path) -> None:
    b = with_its_own_dev(bundle()).sh("cat /etc/secret")
    link = replace(b, "dev/null", outside / "file")
    assert link.read_text() == "of the host\n"
    (b.rootfs / "etc/secret").write_text("secret\n")
    b.linux["maskedPaths"] += ["/etc/secret"]
    said = attempt(runtime, b)
    assert "of the host" not in said
    assert "secret\n" not in said
    assert (outside / "file").read_text() == "of the host\n"


@pytest.mark.falls("runc 1.1.", reason="the masked file is then a sysctl of the host's, to be written to", always=False)
@pytest.mark.attack("CVE-2025-31133", "/dev/null of the image becomes a link into procfs meanwhile")
@pytest.mark.parametrize("target", ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname"])
def test_null_device_becomes_a_link(runtime: Runtime, bundle: MakeBundle, outside: Path, target: str) -> None:
    """The masked file is then a sysctl of the host's that can be written to."""
    b = with_its_own_dev(bundle()).sh("while :; do sleep 0.02; done")
    b.linux["maskedPaths"] = [MASKED]
    volume = b.directory / "volume"
    volume.mkdir()
    (volume / "null").touch()
    (volume / "link").symlink_to(target)
    b.mount("/dev", str(volume), "bind")
    made = 0
    with exchanged(volume / "null", volume / "link"):
        assert happens((volume / "null").is_symlink) and Path(target).exists()
        for _ in range(rounds(15)):
            container = runtime.create(b, check=False)
            if container.result.rc:
                continue
            made += 1
            covers = [
                line.split()[3] for line in container.proc("mountinfo").read_text().splitlines() if f" {MASKED} " in line
            ]
            container.delete("--force")
            container.wait()
            assert all(cover.endswith("/null") or cover == "/" for cover in covers) and covers, f"it is covered by {covers}"
    print(f"{made} of 15 containers were made")
