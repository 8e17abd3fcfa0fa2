"""Whoever shares the rootfs, a volume or the namespaces with a container that is being made; images with device nodes."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from socket import socketpair

import pytest

from gpurun.engine import messages
from gpurun.engine.inside import init_starter
from gpurun.linux import process as lp
from gpurun.ns.copyup import copy_up
from gpurun.ns.namespaces import Join, NamespacePlan
from gpurun.record import to_wire
from tests.attacks.tools import exchanged
from tests.conftest import MakeBundle
from tests.forms import rounds
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.simdriver import SimulatedDriver

pytestmark = [
    pytest.mark.native,
    pytest.mark.attack("CVE-2021-30465, CVE-2025-52881", "a neighbour exchanges directories of a shared rootfs meanwhile"),
]

FOREVER = "echo up; while :; do sleep 0.02; done"


def masks(mountinfo: str, directory: str) -> list[str]:
    """The mount points below the file system that is mounted at *directory*, whatever that is called by now."""
    points = [line.split(" ")[4] for line in mountinfo.splitlines()]
    top = [point for point in points if point in (f"/{directory}", f"/{directory}.other")]
    assert len(top) == 1, points
    return sorted(point.removeprefix(top[0]) for point in points if point.startswith(f"{top[0]}/"))


@pytest.mark.gpurun_only
@pytest.mark.parametrize("name", ["proc", "sys"])
def test_masks_do_not_go_astray(runtime: Runtime, bundle: MakeBundle, leaks: Leaks, name: str) -> None:
    """The directory in which /proc is mounted is exchanged while masks are put on: they are on that /proc all the same."""
    leaks.allow_rootfs_changes()
    b = bundle().sh(FOREVER)
    (b.rootfs / f"{name}.other").mkdir()
    first = runtime.create(b)
    expected = masks(first.proc("mountinfo").read_text(), name)
    assert expected
    first.delete("--force")
    made = 0
    with exchanged(b.rootfs / name, b.rootfs / f"{name}.other") as other:
        for _ in range(rounds(20)):
            container = runtime.create(b, check=False)
            if container.result.rc:
                continue
            made += 1
            other.send_signal(signal.SIGSTOP)
            found = masks(container.proc("mountinfo").read_text(), name)
            other.send_signal(signal.SIGCONT)
            container.delete("--force")
            container.wait()
            assert found == expected
    assert made


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device node")
def test_a_device_in_place_of_a_file_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tmpcopyup from a volume whose owner puts a disk's node where a file was looked at."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "file").write_text("x")
    looked = os.stat(source / "file")
    (source / "file").unlink()
    os.mknod(source / "file", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    monkeypatch.setattr("gpurun.ns.copyup.posix.stat", lambda *_, **__: looked)
    ends = [os.open(directory, os.O_RDONLY) for directory in (source, target)]
    try:
        with pytest.raises(OSError, match="file"):
            copy_up(*ends)
    finally:
        for fd in ends:
            os.close(fd)
    assert os.listdir(target) == []


def dumpable_when_born(namespaces: NamespacePlan) -> int:
    """What prctl(PR_GET_DUMPABLE) is in the starter when it makes the init, which inherits it."""
    ours, its = socketpair()
    with ours, its:
        pid = os.fork()
        if pid == 0:
            try:
                lp.prctl(lp.PR_SET_DUMPABLE, 1)
                init_starter._make_init(its.fileno())
            finally:
                os._exit(9)
        names = tuple(f"{join.type} namespace" for join in namespaces.joins)
        messages.send_files(ours.fileno(), (0,) * len(names), "plan", None, to_wire(namespaces), None, names, False)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) - 10


def test_nobody_looks_into_an_init_that_joins_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its root could trace it from the first moment, in the host's tree still, where both are one user of the host."""
    monkeypatch.setattr("gpurun.engine.inside.init_starter.spawn", lambda *_: os._exit(10 + lp.prctl(3)))
    user, pid = Join("user", lp.CLONE_NEWUSER, "/x"), Join("pid", lp.CLONE_NEWPID, "/y")
    assert dumpable_when_born(NamespacePlan(lp.CLONE_NEWNS, (user, pid))) == 0
    made = NamespacePlan(lp.CLONE_NEWNS | lp.CLONE_NEWUSER)
    assert dumpable_when_born(made) == 1, "a new one's id maps could not be written by a caller who is not root"


@pytest.mark.gpurun_only
def test_the_filter_of_the_driver_is_not_skipped(
    runtime: Runtime, bundle: MakeBundle, leaks: Leaks, sim: SimulatedDriver
) -> None:
    """/proc/driver/nvidia shows the GPUs of all, unless it is covered: also where `proc` is exchanged meanwhile."""
    leaks.allow_rootfs_changes()
    b = bundle().sh(FOREVER)
    b.process["env"] += ["NVIDIA_VISIBLE_DEVICES=0"]
    (b.rootfs / "proc.other").mkdir()
    env = ENVIRONMENT | sim.env
    first = runtime.create(b, env=env)
    covers = [line for line in first.proc("mountinfo").read_text().splitlines() if " /proc/driver" in line]
    assert covers, "the filter is a mount in /proc"
    first.delete("--force")
    made = 0
    with exchanged(b.rootfs / "proc", b.rootfs / "proc.other") as other:
        for _ in range(rounds(20)):
            container = runtime.create(b, check=False, env=env)
            if container.result.rc:
                continue
            made += 1
            other.send_signal(signal.SIGSTOP)
            found = container.proc("mountinfo").read_text()
            other.send_signal(signal.SIGCONT)
            container.delete("--force")
            container.wait()
            assert "/driver" in found, "all GPUs of the host are seen"
    assert made
