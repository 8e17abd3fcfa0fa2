"""An image that has something else where the nodes of AMD's and Intel's GPUs and udev's names for them are to be.

Only where the image's own /dev is the container's does it matter what is in there: a config without a mount at /dev.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.attacks.tools import LOOP_CONTROL, opens
from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simcards import Host, amd, intel
from tests.simcards.machines import LATER

pytestmark = [
    pytest.mark.native,
    pytest.mark.gpurun_only,
    pytest.mark.attack("device nodes of an image", "a node in the place of a file is opened as root"),
]


@pytest.fixture(autouse=True)
def _rootfs_may_change(leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()


class Maker(NamedTuple):
    """A host, the request for its first GPU, and where the nodes and the links of that come, below the root directory."""

    build: Callable[[Path], Host]
    asked: str
    nodes: tuple[str, ...]
    links: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:
        """All of them, and the directories that they are in."""
        return tuple(
            sorted({*self.nodes, *self.links, *[one.rpartition("/")[0] for one in (*self.nodes, *self.links)]} - {"dev"})
        )


def by_path(pci: str) -> tuple[str, ...]:
    return tuple([f"dev/dri/by-path/pci-{pci}-{kind}" for kind in ("card", "render")])


PCI, RENDER = min(amd.MI210[:2])
MAKERS = {
    "amd": Maker(
        lambda path: amd.mi210(path, count=2, later=LATER),
        "AMD_VISIBLE_DEVICES=0",
        ("dev/kfd", f"dev/dri/renderD{RENDER + LATER}", f"dev/dri/card{1 + [*amd.MI210].index((PCI, RENDER))}"),
        by_path(PCI),
    ),
    "intel": Maker(
        lambda path: intel.arc(path, first=LATER),
        "GPURUN_VISIBLE_DEVICES=intel:0",
        (f"dev/dri/renderD{LATER + 128}", f"dev/dri/card{LATER}"),
        by_path(intel.A770),
    ),
    "gaudi": Maker(
        intel.gaudi,
        "HABANA_VISIBLE_DEVICES=0",
        ("dev/accel/accel0", "dev/accel/accel_controlD0", "dev/infiniband/uverbs0"),
    ),
}


def str_of(value: object) -> str:
    """The part of a test's name: the same in each process of pytest-xdist, though LATER is not."""
    if isinstance(value, str):
        return (
            value.rpartition("dev/")[2]
            .replace(f"card{LATER}", "card")
            .replace(f"D{LATER + 128}", "D")
            .replace(f"D{RENDER + LATER}", "D")
        )
    return next(n for n, one in MAKERS.items() if one is value)


@pytest.fixture
def host(tmp_path: Path, maker: Maker) -> Host:
    made = maker.build(tmp_path / "host")
    assert all((made.path / node).is_char_device() for node in maker.nodes)
    assert all((made.path / link).is_symlink() for link in maker.links)
    return made


def with_own_dev(b: Bundle, maker: Maker) -> Bundle:
    """*b* asks for the first GPU, and its /dev is the image's."""
    b.config["mounts"] = [m for m in b.config["mounts"] if not m["destination"].startswith("/dev")]
    b.process["env"].append(maker.asked)
    (b.rootfs / "dev").mkdir(exist_ok=True)
    return b


@pytest.mark.parametrize("climbing", [False, True])
@pytest.mark.parametrize(("maker", "spot"), [(one, name) for one in MAKERS.values() for name in one.places], ids=str_of)
def test_a_link_leads_nowhere_outside(
    runtime: Runtime, bundle: MakeBundle, host: Host, tmp_path: Path, maker: Maker, spot: str, climbing: bool
) -> None:
    b = with_own_dev(bundle().args("sleep", "1000"), maker)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("the host's")
    target = outside / "file" if spot in (*maker.nodes, *maker.links) else outside
    link = b.rootfs / spot
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("../" * 40 + str(target)[1:] if climbing else target)
    before = (outside / "file").stat()
    made = runtime.create(b, check=False, env=ENVIRONMENT | host.env)
    assert sorted(path.name for path in outside.rglob("*")) == ["file"] and (outside / "file").read_text() == "the host's"
    after = (outside / "file").stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    if spot in (*maker.nodes, *maker.links):
        words = "file exists" if spot in maker.links else "something else has that name"
        assert made.result.rc == 1 and words in made.result.err, made.result
    else:  # a directory, which is made in the image, where the link leads to in there
        assert made.result.rc == 0, made.result
        made.start()
        for node in [node for node in maker.nodes if not f"{node}/".startswith(f"{spot}/")]:
            found = os.stat(f"/proc/{made.pid}/root/{node}")
            assert stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(host.path / node).st_rdev
    made.delete("--force")
    assert sorted(path.name for path in outside.rglob("*")) == ["file"]


@pytest.mark.parametrize(("maker", "name"), [(one, name) for one in MAKERS.values() for name in one.nodes], ids=str_of)
def test_a_node_of_the_images_is_neither_opened_nor_allowed(
    runtime: Runtime, bundle: MakeBundle, host: Host, maker: Maker, name: str
) -> None:
    """/dev/loop-control under the name of the GPU's node: it is not taken for the GPU's, and the container is refused."""
    b = with_own_dev(bundle().sh(f"exec 3<>/{name} 2>/dev/null; sleep 1000"), maker)
    node = b.rootfs / name
    node.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(node, stat.S_IFCHR | 0o666, LOOP_CONTROL)
    with opens(node) as events:
        made = runtime.create(b, check=False, env=ENVIRONMENT | host.env)
    assert events == []
    assert made.result.rc == 1 and "something else has that name" in made.result.err, made.result
    assert name in made.result.err
    assert os.stat(node).st_rdev == LOOP_CONTROL, "the image is as it was"
