"""delete of a container that memory has ended waits for the process that has called it, which has to read and tell that.

The directory is no cgroup, but the watches are the kernel's.  tests/systemd/test_limits.py does the same with cgroups.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"
IN_MODIFY = 2
IN_CLOSE_NOWRITE = 16
CODE = """
import sys
from gpurun.cgroup import oom_watch
oom_watch._READ_TIMEOUT, oom_watch._TELL_LEAST, oom_watch._TELL_MOST = (float(word) for word in sys.argv[2:])
look, has = oom_watch._let_read, oom_watch._has
def looked(*arguments):
    found = look(*arguments)
    print("looked", flush=True)
    return found
def sees(*arguments):
    found = has(*arguments)
    if found:
        print("watched", flush=True)
    return found
oom_watch._let_read, oom_watch._has = looked, sees
oom_watch.let_watchers_tell(sys.argv[1])
"""
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # a file system whose device number stat(2) tells as it is
        directory = Path(name)
        (directory / "memory.events").write_text("max 9\noom 1\noom_kill 1\noom_group_kill 0\n")
        (directory / "cgroup.freeze").write_text("0")
        yield directory


def watch(*files: Path, mask: int = IN_MODIFY) -> int:
    fd: int = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    assert fd >= 0
    for file in files:
        assert _libc.inotify_add_watch(fd, os.fsencode(file), mask) > 0
    return fd


def wait_for_event(fd: int, process: subprocess.Popen[bytes]) -> None:
    """Returns when there is something to read of *fd*, which must be before *process* ends."""
    end = time.monotonic() + 60
    while True:
        try:
            os.read(fd, 4096)
            return
        except BlockingIOError:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.01)


def waiting(cgroup: Path, timeout: float = 60.0, between: bool = False, tell: float = 0.1) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", CODE, str(cgroup), str(timeout), str(tell), str(tell)]
    if between:
        argv = ["sh", "-c", '"$@"; exit $?', "sh", *argv]
    return subprocess.Popen(argv, env={"PYTHONPATH": str(SOURCES)}, stdout=subprocess.PIPE)


def still_waits(process: subprocess.Popen[bytes]) -> None:
    """Returns when it has seen the watch ten times more; it has not ended then."""
    assert process.stdout is not None
    seen = 0
    while seen < 10:
        line = process.stdout.readline()
        assert line, "it has ended"
        seen += line == b"watched\n"


@pytest.mark.parametrize("between", [False, True])
def test_who_still_has_to_read_is_waited_for(cgroup: Path, between: bool) -> None:
    fd = watch(cgroup / "memory.events", cgroup / "cgroup.freeze")
    process = waiting(cgroup, between=between)
    wait_for_event(fd, process)  # it has been woken: the cgroup changes
    still_waits(process)
    os.close(fd)
    assert process.stdout and process.stdout.read().count(b"looked\n") > 0
    assert process.wait(60) == 0
    assert (cgroup / "cgroup.freeze").read_text() == "0"


def test_who_begins_to_watch_late_is_waited_for(cgroup: Path) -> None:
    reads = watch(cgroup, mask=IN_CLOSE_NOWRITE)  # of the directory, not of memory.events
    process = waiting(cgroup, tell=2)
    wait_for_event(reads, process)
    assert process.stdout and process.stdout.readline() == b"looked\n"  # and it has found nobody
    fd = watch(cgroup / "memory.events", cgroup / "cgroup.freeze")
    wait_for_event(fd, process)
    still_waits(process)
    os.close(fd)
    os.close(reads)
    process.stdout.read()  # to its end: what nobody reads would hold it
    assert process.wait(60) == 0


def test_who_watches_for_ever_is_not(cgroup: Path) -> None:
    fd = watch(cgroup / "memory.events")
    assert waiting(cgroup, timeout=0.2).wait(60) == 0
    os.close(fd)


@pytest.mark.parametrize("text", ["oom 0\noom_kill 0\n", None])
def test_nobody_waits_where_nothing_was_killed(cgroup: Path, text: str | None) -> None:
    (cgroup / "memory.events").unlink()
    if text is not None:
        (cgroup / "memory.events").write_text(text)
    fd = watch(cgroup / "memory.events" if text else cgroup)
    assert waiting(cgroup).wait(30) == 0
    os.close(fd)


def test_another_cgroup_is_no_reason_to_wait(cgroup: Path, tmp_path: Path) -> None:
    fd = watch(cgroup / "cgroup.freeze", tmp_path)
    assert waiting(cgroup).wait(30) == 0
    os.close(fd)
