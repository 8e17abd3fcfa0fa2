"""Device edits that are killed before each single call that changes something: the journal always tells enough to undo it.

test_killed_gpu.py kills whole creates, at moments that nobody chose; here no moment is left out.
"""

from __future__ import annotations

import os
import posix
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.edits import ContainerEdits
from gpurun.gpu.resolve import Inquiry, gpu_edits
from gpurun.hook.apply import apply_edits
from gpurun.hook.rootfs_target import Target
from gpurun.linux.mount import MS_BIND, MS_PRIVATE, MS_REC, mount
from gpurun.linux.process import CLONE_NEWNS, unshare
from gpurun.ns.journal import Journal
from gpurun.ns.journal import parse as parse_journal
from gpurun.ns.undo import undo
from tests.native.listing import tree_listing
from tests.simdriver import MULTIARCH, Options, SimulatedDriver, make

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

LIB = f"usr/lib/{MULTIARCH[os.uname().machine]}"
#: Everything by which a file system is changed from Python; the mounts go away with the namespace.
CHANGES = (
    "mkdir",
    "symlink",
    "mknod",
    "rename",
    "replace",
    "unlink",
    "link",
    "chmod",
    "chown",
    "utime",
    "write",
    "ftruncate",
    "rmdir",
)


@pytest.fixture
def host(tmp_path: Path) -> SimulatedDriver:
    if os.geteuid() != 0:
        pytest.skip("a mount namespace of its own needs root")
    return make(tmp_path / "host", Options(gpus=1, mig=((0, 1, 0),)))


def plain_image(root: Path) -> None:
    for directory in ("dev", "proc", "etc/ld.so.conf.d", "usr/bin", "usr/lib"):
        (root / directory).mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    (root / "etc/ld.so.cache").write_bytes(b"the image's")
    (root / f"etc/ld-musl-{os.uname().machine}.path").write_text("/lib\n")


def strange_image(root: Path) -> None:
    """Stale files where links are to be, a /dev of the image itself, no /etc."""
    (root / "proc").mkdir(parents=True)
    (root / "dev").mkdir()
    (root / LIB / "nvidia/current").mkdir(parents=True)
    (root / LIB / "nvidia/current/libcuda.so.1").write_text("stale")
    (root / LIB / "nvidia/current/libcuda.so").symlink_to("libcuda.so.1")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/nvidia-smi").write_text("stub")


def killed_before(number: int, rootfs: Path, edits: ContainerEdits, user_namespace: bool, own_dev: bool) -> int:
    """Apply *edits* in a child that ends before its change *number*; how many changes it came to make."""
    file = rootfs.parent / "journal"
    counter = os.memfd_create("changes")
    pid = os.fork()
    if pid == 0:
        try:
            unshare(CLONE_NEWNS)
            mount("none", "/", "none", MS_REC | MS_PRIVATE)
            mount("/proc", str(rootfs / "proc"), "none", MS_BIND | MS_REC)
            if own_dev:
                mount("tmpfs", str(rootfs / "dev"), "tmpfs", 0)
            fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
            journal = Journal(fd, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC))
            _count(number, counter)
            apply_edits(edits, Target(fd, journal, user_namespace, False))
            journal.close()
            os._exit(0)
        except BaseException:  # whatever it is, this is no process for pytest to go on in
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    changes = os.fstat(counter).st_size
    os.close(counter)
    assert status == (0 if number < 0 else 9), status
    return changes


def _count(number: int, counter: int) -> None:
    made = 0
    note = posix.pwrite

    def counted(call: Callable[..., Any], changes: Callable[..., bool]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            nonlocal made
            if changes(*args):
                if made == number:
                    posix._exit(9)
                note(counter, b"x", made)
                made += 1
            return call(*args, **options)

        return wrapper

    for name in CHANGES:
        setattr(posix, name, counted(getattr(posix, name), lambda *_: True))
    posix.open = counted(posix.open, lambda _, flags=0, *more: bool(flags & os.O_CREAT))  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("image", "user_namespace", "own_dev", "capabilities"),
    [(plain_image, False, True, "compute,utility"), (strange_image, True, False, "utility")],
)
def test_killed_before_each_change(
    host: SimulatedDriver,
    tmp_path: Path,
    image: Callable[[Path], None],
    user_namespace: bool,
    own_dev: bool,
    capabilities: str,
) -> None:
    edits = gpu_edits(
        Inquiry(("NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"), {}, False, host.env)
    )
    assert edits is not None
    rootfs = tmp_path / "image/rootfs"
    image(rootfs)
    before = tree_listing(rootfs, exact=True)

    def undone(number: int) -> tuple[int, bool]:
        """(changes that were made, whether the image was another one before they were undone)."""
        changes = killed_before(number, rootfs, edits, user_namespace, own_dev)
        half = tree_listing(rootfs, exact=True) != before
        fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
        kept = undo(fd, parse_journal((rootfs.parent / "journal").read_bytes()))
        os.close(fd)
        assert kept == ()
        after = tree_listing(rootfs, exact=True)
        changed = {
            k: (before.get(k), after.get(k))
            for k in before.keys() | after.keys()
            if _same(before.get(k)) != _same(after.get(k))
        }
        assert changed == {}, f"killed before change {number}"
        _restore_times(rootfs, before)
        return changes, half

    total, _ = undone(-1)
    assert total > 30
    results = [undone(number) for number in range(total)]
    assert [changes for changes, _ in results] == list(range(total))
    assert sum(half for _, half in results) > total / 2


def _same(entry: tuple[object, ...] | None) -> tuple[object, ...] | None:
    """Without the time of a directory, which comes back when its journal was finished and not before."""
    return None if entry is None else entry[:5] + entry[6:]


def _restore_times(rootfs: Path, before: dict[str, tuple[object, ...]]) -> None:
    """For the next round."""
    for name, entry in before.items():
        if isinstance(entry[5], int):
            os.utime(rootfs / name, ns=(entry[5], entry[5]), follow_symlinks=False)
