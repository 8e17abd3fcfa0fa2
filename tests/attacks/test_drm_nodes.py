"""An image that has something else where the nodes of AMD's GPUs and udev's names for them are to be.

Only where the image's own /dev is the container's does it matter what is in there: a config without a mount at /dev.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpurun.gpu.amd.host import amd_gpus
from tests.attacks.tools import LOOP_CONTROL, opens
from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simcards import Host, amd
from tests.simcards.machines import LATER

pytestmark = [
    pytest.mark.native,
    pytest.mark.gpurun_only,
    pytest.mark.attack("device nodes of an image", "a node in the place of a file is opened as root"),
]


@pytest.fixture(autouse=True)
def _rootfs_may_change(leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return amd.mi210(tmp_path / "host", count=2, later=LATER)


def with_own_dev(b: Bundle) -> Bundle:
    """*b* asks for the first GPU, and its /dev is the image's."""
    b.config["mounts"] = [m for m in b.config["mounts"] if not m["destination"].startswith("/dev")]
    b.process["env"] += ["AMD_VISIBLE_DEVICES=0"]
    (b.rootfs / "dev").mkdir(exist_ok=True)
    return b


def names(host: Host) -> list[str]:
    """Where the first GPU's nodes and links come, below the root directory."""
    drm = amd_gpus(str(host.path))[0].drm
    assert drm.render is not None
    links = sorted(
        path.name for path in (host.path / "dev/dri/by-path").iterdir() if path.name.startswith(f"pci-{drm.name}")
    )
    assert len(links) == 2
    return ["dev/kfd", "dev/dri", "dev/dri/by-path", drm.render.path[1:], *[f"dev/dri/by-path/{name}" for name in links]]


@pytest.mark.parametrize("climbing", [False, True])
@pytest.mark.parametrize("which", range(6))
def test_a_link_leads_nowhere_outside(
    runtime: Runtime, bundle: MakeBundle, host: Host, tmp_path: Path, which: int, climbing: bool
) -> None:
    b = with_own_dev(bundle().args("sleep", "1000"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("the host's")
    name = names(host)[which]
    target = outside if name in ("dev/dri", "dev/dri/by-path") else outside / "file"
    link = b.rootfs / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("../" * 40 + str(target)[1:] if climbing else target)
    before = (outside / "file").stat()
    made = runtime.create(b, check=False, env=ENVIRONMENT | host.env)
    assert sorted(path.name for path in outside.rglob("*")) == ["file"] and (outside / "file").read_text() == "the host's"
    after = (outside / "file").stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    if made.result.rc == 0:
        made.start()
        kfd = os.stat(f"/proc/{made.pid}/root/dev/kfd")
        assert stat.S_ISCHR(kfd.st_mode) and kfd.st_rdev == os.stat(host.path / "dev/kfd").st_rdev
    made.delete("--force")
    assert sorted(path.name for path in outside.rglob("*")) == ["file"]


@pytest.mark.parametrize("which", [0, 3])
def test_a_node_of_the_images_is_neither_opened_nor_allowed(
    runtime: Runtime, bundle: MakeBundle, host: Host, which: int
) -> None:
    """/dev/loop-control under the name of the GPU's node: the container gets the GPU's, or is refused."""
    name = names(host)[which]
    b = with_own_dev(bundle().sh(f"exec 3<>/{name} 2>/dev/null; sleep 1000"))
    node = b.rootfs / name
    node.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(node, stat.S_IFCHR | 0o666, LOOP_CONTROL)
    with opens(node) as events:
        made = runtime.create(b, check=False, env=ENVIRONMENT | host.env)
    assert events == []
    if made.result.rc == 0:
        made.start()
        assert os.stat(f"/proc/{made.pid}/root/{name}").st_rdev == os.stat(host.path / name).st_rdev != LOOP_CONTROL
    made.delete("--force")
    assert os.stat(node).st_rdev == LOOP_CONTROL, "the image is as it was"
