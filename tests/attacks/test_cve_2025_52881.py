"""CVE-2025-52881: who shares the rootfs exchanges /proc while the runtime writes to it, so that sysctls and labels go
elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.attacks.tools import exchanged, happens
from tests.conftest import MakeBundle
from tests.forms import rounds
from tests.native.runtime import Runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.attack("CVE-2025-52881", "what the runtime writes to /proc goes to another file, or to none"),
]

SYSCTL, FILE = "net.ipv4.ip_default_ttl", "sys/net/ipv4/ip_default_ttl"


def test_a_sysctl_goes_where_it_should(runtime: Runtime, bundle: MakeBundle, outside: Path) -> None:
    b = bundle().sh("while :; do sleep 0.02; done")
    b.linux["sysctl"] = {SYSCTL: "65"}
    fake = b.rootfs / "proc.other" / FILE
    fake.parent.mkdir(parents=True)
    victim = outside / "file"
    fake.symlink_to(victim)
    assert fake.read_text() == "of the host\n", "who writes to the other /proc writes to the host"
    made = 0
    with exchanged(b.rootfs / "proc", b.rootfs / "proc.other"):
        assert happens(lambda: (b.rootfs / "proc/sys").exists())
        for _ in range(rounds(15)):
            container = runtime.create(b, check=False)
            assert victim.read_text() == "of the host\n"
            if container.result.rc:
                continue
            made += 1
            try:
                namespace = os.open(container.proc("ns/net"), os.O_RDONLY)
            except FileNotFoundError:  # runc 1.1.5: create returns 0, and the process ends after it
                assert not runtime.name.startswith("gpurun"), "create has said that there is a container"
                container.delete("--force")
                continue
            # the network namespace's own view, by a process that the container has not made
            seen = runtime.bed.run("nsenter", f"--net=/proc/{os.getpid()}/fd/{namespace}", "cat", f"/proc/{FILE}")
            os.close(namespace)
            container.delete("--force")
            container.wait()
            assert seen == "65\n", "the sysctl was not set, and nobody said so"
    print(f"{made} of 15 containers were made")


@pytest.mark.parametrize("target", ["/proc/version", "/proc/sys/kernel/core_pattern"])
def test_a_file_of_proc_is_mounted_over_another(runtime: Runtime, bundle: MakeBundle, target: str) -> None:
    """As the report has it: a mount of the config puts one file of procfs over that which the runtime will write to."""
    file = Path(target)
    before = file.read_text()
    b = bundle()
    b.linux["sysctl"] = {SYSCTL: "65"}
    b.mount(f"/proc/{FILE}", target, "bind")
    container = runtime.create(b, check=False)
    after = file.read_text()
    if after != before:
        file.write_text(before)
    assert after == before, "what was for a sysctl of the container is in a file of the host's"
    if not runtime.name.startswith("crun"):  # which writes before it mounts
        assert container.result.rc == 1, "the sysctl went nowhere, and nobody said so"
