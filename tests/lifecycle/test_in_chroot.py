"""gpurun called in a chroot: create says what is in the way, and exec never lands in the host's tree."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.linux.mount import MS_BIND, MS_PRIVATE, MS_REC, mount
from gpurun.linux.process import CLONE_NEWNS, unshare
from tests.conftest import MakeBundle
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime
from tests.native.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


def into(tree: Path, of_mounts: bool) -> Callable[[], None]:
    """What a caller does before: the host's tree is below *tree* as well, and that is its root.

    The root is a mount itself, or *of_mounts* a directory that has one for each directory of the host's root.
    """

    def enter() -> None:
        unshare(CLONE_NEWNS)
        mount("none", "/", "none", MS_REC | MS_PRIVATE)
        if of_mounts:
            for entry in os.scandir("/"):
                if entry.is_symlink():
                    os.symlink(os.readlink(entry), tree / entry.name)
                elif entry.is_dir():
                    (tree / entry.name).mkdir()
                    mount(entry.path, str(tree / entry.name), "", MS_BIND | MS_REC)
        else:
            mount("/", str(tree), "", MS_BIND | MS_REC)
        os.chroot(tree)
        os.chdir("/")

    return enter


def test_exec_is_refused_where_the_chroot_is_a_mount(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    container = runtime.start(bundle().args("sleep", "60"), preexec=into(tmp_path, False))
    done = runtime("exec", container.id, "ls", "/", preexec=into(tmp_path, False))
    assert done.rc != 0 and done.out == ""
    assert "it was made in a chroot, and exec would run in the host's tree" in done.text


def test_exec_of_a_program_that_has_changed_its_root(runtime: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    """That is its own affair: exec goes to the container's root, as with runc."""
    leaks.allow_rootfs_changes()
    b = bundle().sh(
        "mkdir -p /tmp/r/bin && cp /bin/busybox /tmp/r/bin && echo in && exec busybox chroot /tmp/r /bin/busybox sleep 60"
    )
    sets = b.process["capabilities"]
    for name in sets:
        sets[name] = [*sets[name], "CAP_SYS_CHROOT"]
    container = runtime.start(b)
    container.wait_for("in")
    wait_until(lambda: container.proc("comm").read_text() == "busybox\n")
    assert "usr" in runtime("exec", container.id, "ls", "/").out.split()


def test_create_says_that_it_is_in_a_chroot(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    said = runtime.refused(bundle(), preexec=into(tmp_path, True))
    assert "/: invalid argument: gpurun runs in a chroot, whose / is no mount: call it outside" in said
