"""The conversation with CRIU, held with a stand-in for it: how it ends when CRIU does not play along."""

from __future__ import annotations

import os
import posix
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.criu import rpc, swrk
from gpurun.errors import GpurunError
from gpurun.formats import protobuf

PROGRAM = """#!/usr/bin/python3
import os, socket, sys
assert sys.argv[1:] == ["swrk", "3"]
s = socket.socket(fileno=3)
request = s.recv(65536)
def tell(data): s.send(bytes.fromhex(data))
"""


@pytest.fixture
def criu(tmp_path: Path) -> Callable[[str], str]:
    def make(body: str) -> str:
        path = tmp_path / "criu"
        path.write_text(PROGRAM + body)
        path.chmod(0o755)
        return str(path)

    return make


def answer(kind: int, success: bool) -> str:
    return protobuf.message([(1, kind), (2, success)]).hex()


NOTIFY = protobuf.message([(1, rpc.NOTIFY), (2, True), (5, protobuf.message([(1, "post-dump"), (2, 5)]))]).hex()


def test_notifications_are_answered(criu: Callable[[str], str]) -> None:
    path = criu(
        f"tell('{NOTIFY}'); assert s.recv(99).hex() == '{rpc.acknowledge().hex()}'; tell('{answer(rpc.DUMP, True)}')"
    )
    seen: list[str] = []
    started = swrk.Swrk(path)
    said = started.converse(b"request", lambda told, _: seen.append(told.script))
    assert (said.kind, said.success, seen, started.end()) == (rpc.DUMP, True, ["post-dump"], 0)


def test_what_the_caller_raises_makes_criu_give_up(criu: Callable[[str], str]) -> None:
    path = criu(f"tell('{NOTIFY}'); sys.exit(9 if not s.recv(99) else 0)")

    def notified(*_: object) -> None:
        raise GpurunError("no")

    started = swrk.Swrk(path)
    with pytest.raises(GpurunError, match="no"):
        started.converse(b"request", notified)
    assert started.end() == 9


@pytest.mark.parametrize("body", ["pass", "s.close(); os._exit(1)", "os.kill(os.getpid(), 9)"])
def test_it_ends_without_a_word(criu: Callable[[str], str], body: str) -> None:
    started = swrk.Swrk(criu(body))
    with pytest.raises(GpurunError, match="criu ended without an answer"):
        started.converse(b"request", lambda *_: None)
    started.end()


def test_its_descriptors(criu: Callable[[str], str], tmp_path: Path) -> None:
    """The socket is 3, then what it was given, then its directories; nothing else of ours."""
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_text("given")
    look = "names = [os.readlink(f'/proc/self/fd/{n}') for n in (4, 5)]\n"
    look += "more = [n for n in os.listdir('/proc/self/fd') if int(n) > 5]\n"
    look += "open(names[1] + '/said', 'w').write(repr((names[0], len(more))))\n"
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    kept = os.open(tmp_path / "f", os.O_RDONLY)
    os.set_inheritable(kept, True)
    started = swrk.Swrk(criu(look + f"tell('{answer(rpc.DUMP, True)}')"), (str(tmp_path / "d"),), extra=(fd,))
    started.converse(b"request", lambda *_: None)
    started.end()
    os.close(fd)
    os.close(kept)
    # One more: the directory that os.listdir has open.
    assert (tmp_path / "d/said").read_text() == repr((str(tmp_path / "f"), 1))


def test_a_program_that_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(GpurunError, match=r"criu: no such file or directory|ended"):
        swrk.Swrk(str(tmp_path / "criu")).converse(b"", lambda *_: None)
    with pytest.raises(GpurunError, match=r"cannot run .*: .*no such file or directory"):
        swrk.Swrk("/bin/true", (str(tmp_path / "nowhere"),))


def test_find_criu(criu: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = criu("pass")
    monkeypatch.setitem(posix.environ, b"PATH", f"relative:/nonexistent:{tmp_path}".encode())
    assert swrk.find_criu() == path
    os.chmod(path, stat.S_IRUSR)
    if os.access(path, os.X_OK):
        pytest.fail("a file without an x bit is not executable, for root neither")
    with pytest.raises(GpurunError, match="there is no criu in relative:/nonexistent"):
        swrk.find_criu()


def test_reasons(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    log.write_text(
        "(00.1) Error (criu/util.c:1): rlimit: Can't setup RLIMIT_NOFILE\n(00.2) fine\n"
        "(00.3) Error (criu/a.c:2): Can't lookup mount=64\n(00.4) Error (criu/a.c:2): Can't lookup mount=64\n"
        "(00.5) Error (criu/cr-dump.c:2128): Dumping FAILED.\n"
    )
    assert swrk.reasons(str(log)) == "Can't lookup mount=64"
    assert swrk.reasons(str(tmp_path / "nowhere")) == ""
