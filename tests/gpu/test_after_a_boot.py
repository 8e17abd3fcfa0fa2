"""A GPU container whose machine stopped: the next container of its rootfs gets the new driver's files and no others, and
leaves the image as it was."""

# ruff: noqa: F811 - the fixture is imported
from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.linux.procfs import boot_id
from gpurun.ns.journal import is_whole
from gpurun.ns.journal_disk import SYSTEM_DIRECTORY, container_key
from tests.conftest import MakeBundle
from tests.gpu.leases.conftest import MakeHost, make_host  # noqa: F401
from tests.native.bed import remove_cgroup
from tests.native.bundle import Bundle
from tests.native.leaks import Leaks
from tests.native.listing import tree_listing
from tests.native.runtime import ENVIRONMENT, Container, Runtime

pytestmark = [
    pytest.mark.native,
    pytest.mark.gpurun_only,
    pytest.mark.skipif(os.geteuid() != 0, reason="the journals of root"),
]
EARLIER = "00000000-0000-4000-8000-00000000000f"
OLD, NEW = "111.22.33", "444.55.66"


@pytest.fixture
def gpu(bundle: MakeBundle) -> Bundle:
    made = bundle().sh(
        "ls /usr/lib/*/nvidia/current; strings -n 5 /etc/ld.so.cache 2>/dev/null || cat /etc/ld.so.cache; sleep 600"
    )
    made.process["env"] += ["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all"]
    (made.rootfs / "etc/ld.so.conf.d").mkdir(parents=True, exist_ok=True)
    return made


@pytest.fixture
def boot(runtime: Runtime) -> Callable[[Container], None]:
    """Stop the machine: no process, no state, no cgroup, and a boot_id that is another from then on."""

    def stop(container: Container) -> None:
        cgroup = runtime.bed.cgroup(container.cgroup())
        os.kill(container.pid, 9)
        container.wait()
        remove_cgroup(cgroup)
        root = runtime.root
        shutil.rmtree(root / container.id)
        folder = Path(SYSTEM_DIRECTORY) / EARLIER
        folder.mkdir(mode=0o700, exist_ok=True)
        (journal,) = (Path(SYSTEM_DIRECTORY) / boot_id()).glob(f"*.{container_key(str(root), container.id)}")
        journal.rename(folder / journal.name)

    return stop


def test_the_next_container_has_the_new_drivers_files_alone(
    runtime: Runtime,
    gpu: Bundle,
    make_host: MakeHost,
    boot: Callable[[Container], None],
) -> None:
    image = tree_listing(gpu.rootfs)
    boot(runtime.start(gpu, env=ENVIRONMENT | make_host(2, version=OLD).env))
    left = tree_listing(gpu.rootfs)
    assert len(left) > len(image) + 40 and any(OLD in name for name in left)
    again = runtime.start(gpu, env=ENVIRONMENT | make_host(2, version=NEW).env)
    again.wait_for(NEW)
    now = tree_listing(gpu.rootfs)
    assert not any(OLD in name for name in now) and any(NEW in name for name in now)
    assert again.kill("KILL").rc == 0
    again.wait()
    assert again.delete().rc == 0
    assert tree_listing(gpu.rootfs) == image


@pytest.mark.parametrize("by", ["index", "CDI"])
def test_a_container_without_a_gpu_finds_the_image(
    runtime: Runtime, gpu: Bundle, make_host: MakeHost, boot: Callable[[Container], None], by: str
) -> None:
    """The links and the cache that the hooks of a CDI file bring go too."""
    image, host = tree_listing(gpu.rootfs), make_host(2)
    if by == "CDI":
        file = f"{host.path}/etc/cdi/nvidia.yaml"
        assert runtime("cdi", "generate", "--output", file, env=ENVIRONMENT | host.env).rc == 0
        gpu.process["env"][-2] = "NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0"
    boot(runtime.start(gpu, env=ENVIRONMENT | host.env))
    assert len(tree_listing(gpu.rootfs)) > len(image) + 10
    gpu.process["env"] = ["PATH=/bin:/sbin:/usr/bin"]
    runtime.output(gpu.sh("! ls /usr/lib/*/nvidia/current 2>/dev/null"))
    assert tree_listing(gpu.rootfs) == image


@pytest.mark.parametrize("options", [["--force"], []])
def test_delete_of_a_container_that_is_known_no_more(
    runtime: Runtime,
    gpu: Bundle,
    make_host: MakeHost,
    boot: Callable[[Container], None],
    options: list[str],
) -> None:
    image = tree_listing(gpu.rootfs)
    container = runtime.start(gpu, env=ENVIRONMENT | make_host(2).env)
    boot(container)
    done = container.delete(*options)
    assert (done.rc, "does not exist" in done.text) == ((0, False) if options else (1, True)), done
    assert tree_listing(gpu.rootfs) == image


def test_delete_as_usual_leaves_no_journal(runtime: Runtime, gpu: Bundle, make_host: MakeHost) -> None:
    container = runtime.start(gpu, env=ENVIRONMENT | make_host(2).env)
    folder = Path(SYSTEM_DIRECTORY) / boot_id()
    mine = [p for p in folder.iterdir() if str(gpu.rootfs).encode() in p.read_bytes()]
    assert len(mine) == 1 and mine[0].stat().st_mode & 0o777 == 0o600
    assert container.kill("KILL").rc == 0
    container.wait()
    assert container.delete().rc == 0
    assert not mine[0].exists()


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.99])
def test_a_journal_that_was_cut_off(runtime: Runtime, gpu: Bundle, make_host: MakeHost, leaks: Leaks, part: float) -> None:
    """delete refuses; delete --force takes back what it still tells, says that the rest stays, and fails."""
    leaks.rootfs_may_change = True
    image = tree_listing(gpu.rootfs)
    container = runtime.start(gpu, env=ENVIRONMENT | make_host(2).env)
    assert container.kill("KILL").rc == 0
    container.wait()
    journal = runtime.root / container.id / "created"
    data = journal.read_bytes()
    cut = data[: int(len(data) * part)]
    journal.write_bytes(cut[:-1] if is_whole(cut) else cut)  # between two records nothing tells that there were more
    full = len(tree_listing(gpu.rootfs))
    refused = container.delete()
    assert refused.rc == 1 and "journal" in refused.text and len(tree_listing(gpu.rootfs)) == full
    done = container.delete("--force")
    assert done.rc == 1 and "is damaged, and what it no longer lists stays there" in done.text, done.text
    assert not journal.parent.exists()
    left = tree_listing(gpu.rootfs)
    assert len(left) == full if part == 0 else len(image) <= len(left) <= full
    assert part < 0.5 or len(left) < full, "what it tells is taken back"


def test_a_journal_that_is_gone(runtime: Runtime, gpu: Bundle, make_host: MakeHost, leaks: Leaks) -> None:
    leaks.rootfs_may_change = True
    container = runtime.start(gpu, env=ENVIRONMENT | make_host(2).env)
    assert container.kill("KILL").rc == 0
    container.wait()
    os.unlink(os.readlink(runtime.root / container.id / "created"))
    done = container.delete("--force")
    assert done.rc == 1 and "the journal of what was made in its rootfs is gone" in done.text, done.text
