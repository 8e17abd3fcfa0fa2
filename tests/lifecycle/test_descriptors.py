"""What a container's processes have open before its program runs: who may look into them could use it, for writing too.

Run under each Python that there is: this machine's, and those of the trees in ``PYTHON_TREES`` (tests/native/trees.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeBundle, runtime_path
from tests.native.bed import Bed
from tests.native.bundle import Bundle
from tests.native.runtime import Container, Runtime
from tests.native.terminal import Listener
from tests.native.trees import TREES, why_not, wrapper
from tests.native.waiting import wait_until
from tests.security.profile import engine_profile

Change = Callable[[Bundle], None]

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]


@pytest.fixture(params=["this machine's Python", *(map(str, TREES) if TREES else ["another Python"])])
def runtime(bed: Bed, place: Path, request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """gpurun under the Python of the tree, or this machine's; a fixture of this name for all that depend on it."""
    path = runtime_path()
    if request.param == "another Python":
        pytest.skip("PYTHON_TREES names no tree with another Python")
    if request.param.startswith("/"):
        if why_not(Path(request.param)):
            pytest.skip(why_not(Path(request.param)))
        path = wrapper(Path(request.param), path, place)
    made = Runtime(path, bed, Path(tempfile.mkdtemp(dir=place)))
    made.directory.chmod(0o711)
    yield made
    made.cleanup()
    shutil.rmtree(made.directory)


def open_files(pid: int) -> set[str]:
    """What the descriptors of *pid* lead to: sockets and the like without their numbers, the FIFO of start without its path
    (the mount that it was opened on may be gone)."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(fd)
        kind = target.partition(":")[0]
        found.add(
            kind if kind in ("socket", "pipe", "anon_inode") else "exec.fifo" if target.endswith("/exec.fifo") else target
        )
    return found


def streams(container: Container) -> set[str]:
    return {str(container.files / "out"), str(container.files / "err"), "/dev/null"}


def plain(bundle: Bundle) -> None:
    """The config as it is."""


def user_namespace(bundle: Bundle) -> None:
    bundle.user_namespace()


def filtered(bundle: Bundle) -> None:
    bundle.linux["seccomp"] = engine_profile()


def with_all(bundle: Bundle) -> None:
    """What makes the init import and open more: mounts of all kinds, knobs, hooks in the container, limits."""
    bundle.user_namespace()
    bundle.linux["seccomp"] = engine_profile()
    bundle.process["ioPriority"] = {"class": "IOPRIO_CLASS_BE", "priority": 4}
    bundle.mount("/tmp", "tmpfs", "tmpcopyup", kind="tmpfs").mount("/mnt", "/usr/share", "rbind", "ro")
    (bundle.rootfs / "mnt").mkdir()
    bundle.config["hooks"] = {"startContainer": [{"path": "/bin/true"}]}


CONFIGS = pytest.mark.parametrize("change", [plain, user_namespace, filtered, with_all], ids=lambda change: change.__name__)


@pytest.mark.sweep(6)
@CONFIGS
@pytest.mark.parametrize("terminal", [False, True], ids=["streams", "terminal"])
def test_of_a_container_that_waits(
    runtime: Runtime, bundle: MakeBundle, listener: Listener, change: Change, terminal: bool
) -> None:
    b = bundle().sh("sleep 1000")
    change(b)
    b.process["terminal"] = terminal
    container = runtime.create(b, *(("--console-socket", str(listener.path)) if terminal else ()))
    masters = listener.message()[1] if terminal else []
    assert open_files(container.pid) == ({"/dev/pts/0"} if terminal else streams(container)) | {"exec.fifo"}
    for fd in masters:
        os.close(fd)


@contextlib.contextmanager
def pipe_at(numbers: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """How a command is called that has the reading end of a pipe under each of these *numbers*.

    A shell puts it there: in this process the numbers may be somebody else's.
    """
    reading, writing = os.pipe()
    script = " ".join(["exec", *(f"{number}<&0" for number in numbers), "0<>/dev/null"])
    try:
        yield {"stdin": reading, "tracer": ["bash", "-c", f'{script}; exec "$@"', "bash"]}
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("count", "numbers"), [(57, (58, 59)), (88, (59, 90)), (60, (55,)), (3, ())])
def test_preserved_descriptors(runtime: Runtime, bundle: MakeBundle, count: int, numbers: tuple[int, ...]) -> None:
    """Those that are to be there are there, and no other between and after them: Podman names the last, with gaps before."""
    options = ("--preserve-fds", str(count))
    given = {str(number) for number in (0, 1, 2, *numbers)}
    with pipe_at(numbers) as how:
        container = runtime.create(bundle().sh("sleep 1000; true"), *options, **how)
        assert open_files(container.pid) == streams(container) | {"exec.fifo"} | ({"pipe"} if numbers else set())
        assert len(os.listdir(container.proc("fd"))) == 4 + len(numbers)
        assert container.start().rc == 0
        wait_until(lambda: container.proc("comm").read_text() == "sh\n")
        assert set(os.listdir(container.proc("fd"))) == given
        seen = runtime("exec", *options, container.id, "ls", "/proc/self/fd", **how).out.split()
        assert len(seen) == len(given) + 1, "ls itself reads the directory"
        assert given < set(seen)


@contextlib.contextmanager
def waiting_exec(container: Container, *options: str) -> Iterator[int]:
    """The pid of exec's process, which is all but there: its caller waits for somebody to take the pidfd it asks for."""
    path = container.files / "pidfd"
    server, first = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(0)
    first.connect(str(path))  # one may wait to be accepted, a second waits to connect
    runtime = container.runtime
    files = runtime.new_files()
    caller = runtime.popen("exec", "--pidfd-socket", str(path), *options, container.id, "true", files=files)
    try:
        yield only_child(caller.pid)
        first.close()
        for _ in range(2):
            taken = server.accept()[0]
            while taken.recv(100):
                pass
            taken.close()
        assert caller.wait(20) == 0, (files / "err").read_text()
    finally:
        caller.kill()
        caller.wait()
        server.close()


def only_child(pid: int) -> int:
    """The one child that *pid* has, once there is no other (the starter has ended) and it waits for its peer."""

    def children() -> list[str]:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    wait_until(lambda: len(children()) == 1 and Path(f"/proc/{pid}/wchan").read_text() == "unix_wait_for_peer")
    return int(children()[0])


@pytest.mark.sweep(4)
@CONFIGS
def test_of_execs_process(runtime: Runtime, bundle: MakeBundle, change: Change) -> None:
    b = bundle().sh("sleep 1000")
    change(b)
    container = runtime.start(b)
    with waiting_exec(container) as pid:
        found = open_files(pid)
    assert {target for target in found if not target.startswith(str(runtime.directory))} == {"/dev/null", "socket"}


def test_of_execs_process_at_its_birth(runtime: Runtime, bundle: MakeBundle) -> None:
    """Its setter is born in the cgroup of the container and outside of its pid namespace, where nobody can look into it; if
    the cgroup is frozen, it cannot move.  The host's /proc is open in it, and of the cgroup a read-only mount of its own.
    As a copy of the caller it has the caller's own program open for reading as well, until its first step."""
    container = runtime.start(bundle().sh("sleep 1000"))
    assert runtime("pause", container.id).rc == 0
    known = cgroup_processes(container)
    files = runtime.new_files()
    caller = runtime.popen("exec", "--ignore-paused", container.id, "true", files=files)
    wait_until(lambda: len(cgroup_processes(container)) > len(known))
    (pid,) = cgroup_processes(container) - known
    assert os.readlink(f"/proc/{pid}/ns/pid") != os.readlink(f"/proc/{container.pid}/ns/pid")
    open_, directories = open_files(pid), []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        if fd.is_dir() and os.readlink(fd) != "/proc":
            directories.append(fd)
            assert os.path.samefile(fd / "..", fd), "no way up to the host's tree"
            with pytest.raises(OSError, match="Read-only"):
                os.open(fd / "cgroup.max.depth", os.O_WRONLY)
    assert len(directories) == 1
    known_ones = {"/dev/null", "/proc", "socket", "pipe", "anon_inode", os.readlink(directories[0])}
    if runtime.path.endswith("-fast"):
        known_ones.add(os.path.realpath(runtime.path))
    assert {target for target in open_ if not target.startswith(str(runtime.directory))} <= known_ones
    assert runtime("resume", container.id).rc == 0
    assert caller.wait(20) == 0, (files / "err").read_text()


def cgroup_processes(container: Container) -> set[int]:
    procs = container.runtime.bed.cgroup(container.cgroup()) / "cgroup.procs"
    return set(map(int, procs.read_text().split()))
