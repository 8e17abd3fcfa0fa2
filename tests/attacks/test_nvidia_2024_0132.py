"""NVIDIA CVE-2024-0132 and CVE-2025-23359: while the driver's files are put in, the image has a link to the host in
the place of a directory, or exchanges the two after they have been looked at.  CVE-2024-0133 and -0134: files are made
on the host that way.

tests/hook/test_hostile_images.py has every place and every kind of link, without a container.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.attacks.tools import exchanged, happens, replace
from tests.conftest import MakeBundle
from tests.forms import rounds
from tests.hook.applying import LIB
from tests.native.bundle import Bundle
from tests.native.listing import tree_listing
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import SimulatedDriver

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

FOREVER = "while :; do sleep 0.02; done"
COMPAT = "usr/local/cuda/compat"


def with_gpus(b: Bundle) -> Bundle:
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    (b.rootfs / LIB).parent.mkdir(parents=True, exist_ok=True)
    return b


@pytest.mark.sweep(4)
@pytest.mark.attack("NVIDIA CVE-2024-0132", "the image leads a directory of the driver's libraries to the host")
@pytest.mark.parametrize("where", [LIB, COMPAT, "usr/bin"])
@pytest.mark.parametrize("target", ["{outside}/dir", "{up}{outside}/dir", "/proc/self/root{outside}/dir"])
def test_a_link_to_the_host(
    runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver, outside: Path, where: str, target: str
) -> None:
    b = with_gpus(bundle().args("/bin/busybox", "sleep", "100"))
    (b.rootfs / where).parent.mkdir(parents=True, exist_ok=True)
    link = replace(b, where, target.format(outside=outside, up="../" * 30))
    assert link.stat().st_ino == (outside / "dir").stat().st_ino, "who follows the link is on the host"
    before, driver = tree_listing(outside), tree_listing(sim.path)
    container = runtime.create(b, check=False, env=ENVIRONMENT | sim.env)
    if target.startswith("/proc/self") and where != COMPAT:
        assert container.result.rc == 1 and "too many levels of symbolic links" in container.result.err, container.result
    else:
        assert container.result.rc == 0, container.result
        shown = [line.split()[4] for line in container.proc("mountinfo").read_text().splitlines()]
        seen = [line.split()[3] for line in container.proc("mountinfo").read_text().splitlines()]
        assert shown and not [root for root in seen if root.startswith(str(outside))]
    assert tree_listing(outside) == before and tree_listing(sim.path) == driver


@pytest.mark.attack(
    "NVIDIA CVE-2025-23359", "the image exchanges a directory of the driver's for a link to the host meanwhile"
)
@pytest.mark.parametrize("where", [LIB, COMPAT])
def test_a_directory_becomes_a_link(
    runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver, outside: Path, where: str
) -> None:
    b = with_gpus(bundle().sh(FOREVER))
    directory = b.rootfs / where
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "libcuda.so.999.99.9").touch()
    (outside / "dir/libcuda.so.1000.1").write_text("of the host\n")
    link = directory.with_name("link")
    link.symlink_to(outside / "dir")
    before = tree_listing(outside)
    made = 0
    with exchanged(directory, link):
        assert happens(lambda: os.path.samefile(directory, outside / "dir")), "now and then it leads to the host"
        for _ in range(rounds(15)):
            container = runtime.create(b, check=False, env=ENVIRONMENT | sim.env)
            if container.result.rc == 0:
                made += 1
                lines = container.proc("mountinfo").read_text().splitlines()
                assert not [line for line in lines if line.split()[3].startswith(str(outside))]
            container.delete("--force")
            if container.result.rc == 0:
                container.wait()
            assert tree_listing(outside) == before
    print(f"{made} of 15 containers were made")


@pytest.mark.attack("NVIDIA CVE-2024-0133, -0134", "files and links are made, or their owners changed, on the host")
@pytest.mark.parametrize("name", ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"])
def test_no_file_is_made_on_the_host(
    runtime: Runtime, bundle: MakeBundle, sim: SimulatedDriver, outside: Path, name: str
) -> None:
    b = with_gpus(bundle().sh(FOREVER))
    (b.rootfs / LIB).mkdir(parents=True)
    dangling = b.rootfs / LIB / name
    dangling.symlink_to(outside / "made")
    assert os.path.realpath(dangling) == str(outside / "made"), "who makes the file makes it on the host"
    before = tree_listing(outside, exact=True)
    runtime.create(b, check=False, env=ENVIRONMENT | sim.env).delete("--force")
    assert tree_listing(outside, exact=True) == before
