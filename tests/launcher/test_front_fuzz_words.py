"""Command lines for the compiled front, right and wrong: what it takes itself the launcher takes too, with the same exit
code, the same words and the same done to the container; all else it leaves to the launcher and has changed nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from gpurun.builder.front import compiler  # noqa: E402
from tests.attacks.fuzzing import fuzzed_more  # noqa: E402
from tests.attacks.test_fuzz_command_lines import call  # noqa: E402
from tests.attacks.words import Line, lines, mistaken  # noqa: E402
from tests.launcher.front import FALLS_BACK, Store  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not compiler(), reason="there is no C compiler here"),
    pytest.mark.attack("damaged input", "a reader hangs, crashes or takes what contradicts itself"),
]

Draw = Callable[..., Any]
#: Options before the command, with {} for the directory of the container's store.
GLOBALS = [
    *(["--log", "{}/said"], ["--log={}/said"], ["--log", ""], ["--log="], ["--log", "{}/gone/said"], ["--log", "said"]),
    *(["--log", "{}"], ["--log=file:{}/said"], ["--log-format", "json"], ["--log-format=text"], ["--log-format="]),
    *(["--log-format", "xml"], ["--systemd-cgroup"], ["--systemd-cgroup=false"], ["--root={}/root"], ["--root={}/root/"]),
    *(["--root={}/root/."], ["--root", "{}/x/../root"], ["--root={}//root"], ["--root", "{}/link"], ["--root={}/gone"]),
    *(["--root"], ["--log"], ["-root", "/"]),
]
#: What the front may take itself, and some that it has to leave.
COMMANDS = ("state", "state", "start", "kill", "kill", "kill", "delete", "delete", "pause", "resume", "list", "create")


@st.composite
def command_lines(draw: Draw) -> tuple[str, ...]:
    line: Line = draw(lines(COMMANDS, st.sampled_from(["c", "c", "c", "gone"])))
    wrong: tuple[str, ...] = draw(mistaken(line.words))
    words: tuple[str, ...] = draw(st.sampled_from([line.words, line.words, wrong]))
    return words


class Container:
    """The container ``c``, of which a process is there or has been."""

    def __init__(self, directory: Path, alive: bool) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self.process = subprocess.Popen(["sleep", "100"])
        self.store = Store(directory, self.process.pid)
        (directory / "link").symlink_to("root")
        if not alive:
            self.process.kill()
            self.process.wait()

    def end(self) -> tuple[list[tuple[str, bytes]], int | None]:
        """(what is there of it, the signal that its process has got)."""
        proc = Path(f"/proc/{self.process.pid}")
        letter = ""
        while self.process.returncode is None:
            letter = (proc / "stat").read_text().rpartition(")")[2].split()[0]
            pending = [line.split()[1] for line in (proc / "status").read_text().splitlines() if "Pnd:" in line]
            if letter == "Z" or (letter in "ST" and not any(int(mask, 16) for mask in pending)):
                break
        self.process.kill()
        code = self.process.wait()
        found = [(name, data) for name, data in self.store.listing() if not os.path.basename(name).startswith(".")]
        pid, start = b"\npid=%d\n" % self.store.state.pid, b"\nstart_time=%d\n" % self.store.state.start_time
        # As whole lines: the digits of a pid are found in other numbers as well.
        same = [(name, data.replace(pid, b"\npid=PID\n").replace(start, b"\nstart_time=TIME\n")) for name, data in found]
        return same, -signal.SIGSTOP if letter == "T" else code


def compare(
    done: subprocess.CompletedProcess[bytes],
    container: Container,
    ended: tuple[list[tuple[str, bytes]], int | None],
    other: Container,
    words: tuple[str, ...],
) -> None:
    """The launcher does with *words* to *other* what the front has *done* to *container*, which *ended* so."""
    directory = other.store.root.parent
    try:
        code, out, err = call(words, directory)
    finally:
        for name in (".stdout", ".stderr"):
            (directory / name).unlink(missing_ok=True)
        pure = other.end()
    out = out.replace(f'"pid": {other.store.state.pid},', f'"pid": {container.store.state.pid},')
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (code, out, err)
    assert ended == pure


@fuzzed_more
@given(st.lists(st.sampled_from(GLOBALS), max_size=3), command_lines(), st.booleans())
def test_the_front_and_the_launcher(
    places: Path, tmp_path_factory: pytest.TempPathFactory, options: list[list[str]], words: tuple[str, ...], alive: bool
) -> None:
    directory = tmp_path_factory.getbasetemp() / "front-words"
    container = Container(directory, alive)
    before_it = [word.format(directory) for option in options for word in option]
    given_words = ("--root", str(container.store.root), *before_it, *words)
    before = container.store.listing()
    try:
        done = subprocess.run([places / "bare", *map(os.fsencode, given_words)], capture_output=True, env={}, timeout=30)
        after = container.store.listing()
    finally:
        ended = container.end()
    if done.stderr.decode("utf-8", "replace").startswith(FALLS_BACK):
        after = [entry for entry in after if entry != ("said", b"")]  # a log is made first of all
        assert done.returncode == 1 and done.stdout == b"" and after == before
        assert ended[1] == -signal.SIGKILL
        return
    compare(done, container, ended, Container(directory, alive), given_words)
