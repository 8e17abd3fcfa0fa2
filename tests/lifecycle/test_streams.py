"""Whose the standard streams are: a process may open its /dev/stdout, and is given nothing that is the host's."""

from __future__ import annotations

import os
import socket
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.native

FOREVER = "sleep 1000"


class Stream:
    """A standard input of one kind: a descriptor for the process, and whose it is."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.fds: list[int] = []
        path = directory / "stream"
        if kind == "terminal":
            self.fds = [*os.openpty()][::-1]
            tty.setraw(self.fds[0])
        elif kind == "pipe":
            self.fds = [*os.pipe()][::-1]
        elif kind == "socket":
            ours, its = socket.socketpair()
            self.fds = [its.detach(), ours.detach()]
        elif kind == "named pipe":
            os.mkfifo(path, 0o600)
            self.fds = [os.open(path, os.O_RDWR)]
        elif kind in ("zero", "full"):
            os.mknod(path, 0o20666, os.makedev(1, 5 if kind == "zero" else 7))
            self.fds = [os.open(path, os.O_RDWR)]
        else:
            path.write_text("the host's log\n")
            path.chmod(0o640)
            self.fds = [os.open(path, os.O_RDWR | (os.O_APPEND if kind == "log" else 0))]
        self.before = self.owner

    @property
    def owner(self) -> tuple[int, int, str]:
        found = os.fstat(self.fds[0])
        return found.st_uid, found.st_gid, oct(found.st_mode)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def stream(request: pytest.FixtureRequest, runtime: Runtime) -> Iterator[Stream]:
    try:
        made = Stream(request.param, runtime.directory)
    except PermissionError:
        pytest.skip("no device can be opened here")
    yield made
    made.close()


def kinds(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("stream", names, indirect=True)


def by_run(runtime: Runtime, bundle: Bundle, stream: int) -> None:
    result = runtime.run(bundle.args("true"), stdin=stream)
    assert result.rc == 0, result.text


def by_create(runtime: Runtime, bundle: Bundle, stream: int) -> None:
    container = runtime.create(bundle.args("true"), stdin=stream)
    assert container.start().rc == 0
    assert container.wait() == 0


def by_exec(runtime: Runtime, bundle: Bundle, stream: int) -> None:
    container = runtime.start(bundle.sh(FOREVER))
    result = runtime("exec", container.id, "true", stdin=stream)
    assert result.rc == 0, result.text


WAYS = pytest.mark.parametrize("way", [by_run, by_create, by_exec], ids=lambda way: way.__name__)
Way = Callable[[Runtime, Bundle, int], None]


@pytest.mark.sweep(5)
@WAYS
@kinds("terminal", "log", "file", "zero", "full")
def test_what_is_the_hosts_stays_the_hosts(runtime: Runtime, bundle: MakeBundle, way: Way, stream: Stream) -> None:
    """As runc, which does not give it to a user namespace at all: its root could chmod it, or erase it."""
    way(runtime, bundle().user_namespace(), stream.fds[0])
    assert stream.owner == stream.before


@pytest.mark.sweep(5)
@WAYS
@kinds("terminal", "log", "file", "zero", "full")
def test_so_for_another_user_of_a_user_namespace(runtime: Runtime, bundle: MakeBundle, way: Way, stream: Stream) -> None:
    b = bundle().user_namespace()
    b.process["user"] = {"uid": 1000, "gid": 1000}
    way(runtime, b, stream.fds[0])
    assert stream.owner == stream.before


@WAYS
@kinds("terminal", "zero", "full")
def test_a_device_stays_the_hosts_without_a_user_namespace(
    runtime: Runtime, bundle: MakeBundle, way: Way, stream: Stream
) -> None:
    """As with crun; runc gives them all to the user, /dev/null excepted."""
    if runtime.name == "runc":
        pytest.skip("runc gives the user any device but /dev/null")
    b = bundle()
    b.process["user"] = {"uid": 1000, "gid": 1000}
    way(runtime, b, stream.fds[0])
    assert stream.owner == stream.before


@pytest.mark.sweep(6)
@pytest.mark.gpurun_only
@WAYS
@kinds("pipe", "named pipe", "socket")
@pytest.mark.parametrize(("uid", "owner"), [(0, 100000), (1000, 101000)])
def test_pipes_belong_to_the_user(
    runtime: Runtime, bundle: MakeBundle, way: Way, stream: Stream, uid: int, owner: int
) -> None:
    b = bundle().user_namespace()
    b.process["user"] = {"uid": uid, "gid": uid}
    way(runtime, b, stream.fds[0])
    assert stream.owner[0] == owner


def test_a_user_namespace_can_open_its_streams(runtime: Runtime, bundle: MakeBundle) -> None:
    """A shim's and conmon's streams are pipes."""
    b = bundle().user_namespace().sh("echo to-stdout >/dev/stdout; echo to-stderr >/dev/stderr")
    reads, writes = os.pipe()

    def use_pipe() -> None:
        os.dup2(writes, 1)
        os.dup2(writes, 2)

    assert runtime.run(b, preexec=use_pipe).rc == 0
    os.close(writes)
    with open(reads) as shown:
        assert shown.read() == "to-stdout\nto-stderr\n"
