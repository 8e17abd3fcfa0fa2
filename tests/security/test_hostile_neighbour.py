"""Whoever shares the rootfs, a volume or the namespaces with a container that is being made; images with device nodes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import socketpair

import pytest

from gpurun.engine import init, sync
from gpurun.linux import process as lp
from gpurun.ns.copyup import copy_up
from gpurun.ns.namespaces import Join, NamespacePlan
from gpurun.record import to_wire
from tests.conftest import MakeBundle
from tests.native.bed import Bed
from tests.native.leaks import Leaks
from tests.native.runtime import Runtime
from tests.native.terminal import Listener

pytestmark = pytest.mark.native

FOREVER = "echo up; while :; do sleep 0.02; done"
LOOP_CONTROL = os.makedev(10, 237)  # a device that no container of these tests may open
IN_OPEN = 0x20
#: Exchanges two names (renameat2(2), RENAME_EXCHANGE) until it is told to end; an even number of times.
_EXCHANGE = """
import ctypes, signal, sys, time
libc = ctypes.CDLL(None)
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
one, other = sys.argv[1].encode(), sys.argv[2].encode()
print("ready", flush=True)
while not over:
    for _ in range(2):
        if libc.renameat2(-100, one, -100, other, 2):
            sys.exit("renameat2 does not work")
        time.sleep(0.00001)
"""


@contextmanager
def exchanged(one: Path, other: Path) -> Iterator[subprocess.Popen[str]]:
    """*one* and *other* change places all the time, as a hostile process would have them."""
    process = subprocess.Popen([sys.executable, "-c", _EXCHANGE, one, other], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()


@contextmanager
def opens(path: Path) -> Iterator[list[bytes]]:
    """What inotify(7) tells of open(2) on *path*; to be read after the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), IN_OPEN) >= 0
    events: list[bytes] = []
    try:
        yield events
        try:
            events.append(os.read(fd, 4096))
        except BlockingIOError:
            pass
    finally:
        os.close(fd)


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
        for _ in range(20):
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


@pytest.mark.gpurun_only
@pytest.mark.parametrize("path", ["etc/passwd", "dev/null"])
def test_device_nodes_of_an_image_are_not_opened(runtime: Runtime, bundle: MakeBundle, leaks: Leaks, path: str) -> None:
    """To open one may be enough (a watchdog, a tape), and create is not held by the container's device rules until late."""
    leaks.allow_rootfs_changes()
    b = bundle().sh(FOREVER)
    if path == "dev/null":  # /dev is a volume
        b.config["mounts"] = [m for m in b.config["mounts"] if not m["destination"].startswith("/dev")]
        volume = b.directory / "volume"
        volume.mkdir()
        b.mount("/dev", str(volume), "bind")
        node = volume / "null"
    else:
        node = b.rootfs / path
        node.unlink()
    os.mknod(node, stat.S_IFCHR | 0o666, LOOP_CONTROL)
    with opens(node) as events:
        runtime.create(b, check=False)
    assert events == []


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
    assert os.listdir(target) == [] or (target / "file").stat().st_size == 0


def dumpable_when_born(namespaces: NamespacePlan) -> int:
    """What prctl(PR_GET_DUMPABLE) is in the starter when it makes the init, which inherits it."""
    ours, its = socketpair()
    with ours, its:
        pid = os.fork()
        if pid == 0:
            try:
                lp.prctl(lp.PR_SET_DUMPABLE, 1)
                init._become_init(its.fileno())
            finally:
                os._exit(9)
        names = tuple(f"{join.type} namespace" for join in namespaces.joins)
        sync.send_files(ours.fileno(), (0,) * len(names), "plan", to_wire(namespaces), None, names, False)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) - 10


def test_nobody_looks_into_an_init_that_joins_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its root could trace it from the first moment, in the host's tree still, where both are one user of the host."""
    monkeypatch.setattr("gpurun.engine.init.spawn", lambda *_: os._exit(10 + lp.prctl(3)))
    user, pid = Join("user", lp.CLONE_NEWUSER, "/x"), Join("pid", lp.CLONE_NEWPID, "/y")
    assert dumpable_when_born(NamespacePlan(lp.CLONE_NEWNS, (user, pid))) == 0
    made = NamespacePlan(lp.CLONE_NEWNS | lp.CLONE_NEWUSER)
    assert dumpable_when_born(made) == 1, "a new one's id maps could not be written by a caller who is not root"


@pytest.mark.gpurun_only
def test_exec_brings_no_way_to_the_host(runtime: Runtime, bundle: MakeBundle, bed: Bed) -> None:
    """A container with CAP_SYS_PTRACE sees what its new process has open: neither the host's /proc nor its cgroups.

    The container is paused, so the process is held in the moment in which it is born.
    """
    container = runtime.start(bundle().sh(FOREVER))
    container.wait_for("up")
    assert runtime("pause", container.id).rc == 0
    members = bed.cgroup(container.cgroup()) / "cgroup.procs"
    before = set(members.read_text().split())
    listener = Listener(runtime.directory / "console.sock")
    process = {"terminal": True, "cwd": "/", "env": ["PATH=/bin"], "args": ["true"]}
    (container.files / "process.json").write_text(json.dumps(process))
    options = ["--ignore-paused", "--detach", "--console-socket", str(listener.path)]
    options += ["--process", str(container.files / "process.json")]
    files = runtime._files()
    command = runtime.popen("exec", *options, container.id, files=files)
    end = time.monotonic() + 60
    while not (born := set(members.read_text().split()) - before):
        assert command.poll() is None and time.monotonic() < end, (files / "err").read_text()
        time.sleep(0.01)
    (pid,) = born
    paths = [f"/proc/{pid}/fd/{fd}" for fd in os.listdir(f"/proc/{pid}/fd")]
    opened = [os.readlink(path) for path in paths]
    ways_up = [path for path in paths if os.path.isdir(path) and not os.path.samefile(path, f"{path}/..")]
    assert runtime("resume", container.id).rc == 0
    assert command.wait(60) == 0, (files / "err").read_text()
    listener.message()
    listener.socket.close()
    os.waitpid(int(pid), 0)
    assert len(opened) > 3 and not ways_up
    assert not [path for path in opened if path.startswith(("/proc", "/sys"))]
