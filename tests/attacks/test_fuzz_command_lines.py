"""Command lines through the machine's parser, what people see of it (click's help and completion), and the commands that can
be called without a container: what is right is understood as it was meant, all else is refused in a sentence, soon, and
leaves nothing. The compiled front has the same words in tests/launcher/test_front_fuzz_words.py."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import example, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from gpurun import __main__, log  # noqa: E402
from gpurun.cli import human, rows, table  # noqa: E402
from gpurun.cli.parse import parse  # noqa: E402
from gpurun.engine import state as store  # noqa: E402
from gpurun.errors import GpurunError  # noqa: E402
from gpurun.invocation import Globals  # noqa: E402
from gpurun.record import replace  # noqa: E402
from tests.attacks.fuzzing import fuzzed, fuzzed_more, share  # noqa: E402
from tests.attacks.words import Draw, Line, given_options, lines, mistaken  # noqa: E402

pytestmark = pytest.mark.attack("damaged input", "a reader hangs, crashes or takes what contradicts itself")

GLOBALS = tuple(o for o in rows.global_options() if o.name not in ("help", "version", "cgroup-manager", "log-format"))
#: Those that look at the state root and make no process of a container's.
CALLED = ("state", "start", "kill", "delete", "pause", "resume", "list", "update", "features")


@fuzzed_more
@given(given_options(GLOBALS), lines())
def test_what_is_right_is_understood(before: tuple[list[list[str]], dict[str, Any]], line: Line) -> None:
    words, meant = before
    found = parse([word for one in words for word in one] + list(line.words))
    assert (found.command, found.args, found.options) == (line.command, line.arguments, line.options)
    assert found.globals.log == str(meant.get("log", "")) and found.globals.debug == meant.get("debug", False)
    assert found.globals.root_given == ("root" in meant) and found.globals.gpu_map == meant.get("gpu-map", ())
    again = [f"--{name}={value}" for name, value in found.options.items() if not isinstance(value, tuple)]
    again += [f"--{name}={one}" for name, value in found.options.items() if isinstance(value, tuple) for one in value]
    assert replace(parse([found.command, *again, "--", *found.args]), globals=found.globals) == found


MISTAKES = lines().flatmap(lambda line: mistaken(line.words))


@fuzzed_more
@given(MISTAKES)
@example(("create", "--preserve-fds", "9" * 5000, "c"))
def test_mistakes(words: tuple[str, ...]) -> None:
    try:
        found = parse(words)
    except GpurunError as e:
        assert str(e)
        return
    if found.command not in ("help", "version"):
        row = rows.command(found.command)
        assert row.least <= len(found.args) and (row.most < 0 or len(found.args) <= row.most)
        assert set(found.options) <= {option.name for option in row.options}
    assert found.globals.root.startswith("/") and found.globals.root != "/"


@st.composite
def half_typed(draw: Draw) -> tuple[str, ...]:
    """The words up to one of them, and the beginning of that."""
    words = draw(st.one_of(lines().map(lambda line: line.words), MISTAKES))
    if not words:
        return ("",)
    at = draw(st.integers(0, len(words) - 1))
    return (*words[:at], words[at][: draw(st.integers(0, len(words[at])))])


def offered(words: tuple[str, ...]) -> list[Any]:
    import click.shell_completion

    shell = click.shell_completion.ShellComplete(COMMAND, {}, "gpurun", "_GPURUN_COMPLETE")
    return shell.get_completions(["--root", "/nowhere", *words[:-1]], words[-1])


@fuzzed
@given(half_typed())
def test_completion(words: tuple[str, ...]) -> None:
    """Every word that is offered goes on with what was typed, and is one that gpurun knows."""
    typed = words[-1]
    for item in offered(words):
        assert item.value.startswith(typed) or item.type in ("file", "dir") or "=" in typed, (typed, item.value)


@fuzzed
@given(st.lists(st.one_of(st.sampled_from([*table.COMMANDS, *table.GROUPS]), st.text(max_size=8)), max_size=3))
def test_help(topic: list[str]) -> None:
    try:
        text = human.help_text(*topic)
    except GpurunError as e:
        assert topic and topic[0] not in table.COMMANDS and str(e)
        human.did_you_mean(topic[0])
        return
    assert text.startswith("Usage: ")


COMMAND = human.build()


class Root:
    """A state root with a container ``c`` whose process has ended."""

    def __init__(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self.path = directory / "root"
        (self.path / "c").mkdir(parents=True)
        (directory / "cgroup").mkdir()
        cgroup = str(directory / "cgroup")
        made = store.State("c", "/b", "/b/fs", cgroup, True, 4194304, 1, "2026-01-02T03:04:05Z", owner="root")
        store.save(str(self.path), made)
        (self.path / "c/config.json").write_text('{"process":{}}')

    def listing(self) -> list[str]:
        """What is there, but for what only spares or orders work."""
        top = self.path.parent
        return sorted(str(path.relative_to(top)) for path in top.rglob("*") if not path.name.startswith("."))


def call(words: tuple[str, ...], directory: Path) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of gpurun in this process."""
    outputs = [os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for name in (".stdout", ".stderr")]
    kept = [os.dup(fd) for fd in (1, 2)]
    try:
        os.dup2(outputs[0], 1)
        os.dup2(outputs[1], 2)
        code = __main__.main(["gpurun", *words])
    finally:
        for fd, before in zip((1, 2), kept, strict=True):
            os.dup2(before, fd)
            os.close(before)
        log.open_log(Globals(str(directory)))
        if log._Log.fd != 2:  # that of a --log among the words
            os.close(log._Log.fd)
            log._Log.fd = 2
    said = []
    for fd in outputs:
        said.append(os.pread(fd, 1 << 20, 0).decode("utf-8", "surrogateescape"))
        os.close(fd)
    return code, said[0], said[1]


_CALLS = lines(CALLED, st.sampled_from(["c", "c", "c", "gone", "9"])).map(lambda line: line.words)
CALLS = st.one_of(_CALLS, _CALLS.flatmap(mistaken))


@fuzzed
@given(CALLS)
def test_calls(tmp_path_factory: pytest.TempPathFactory, words: tuple[str, ...]) -> None:
    root = Root(tmp_path_factory.getbasetemp() / "words")
    before = root.listing()
    words = ("--root", str(root.path), *words)
    try:
        meant = parse(words)
    except GpurunError:
        meant = None
    if meant is not None and (
        meant.globals.root != str(root.path) or meant.globals.log or meant.command not in (*CALLED, "help", "version")
    ):
        return  # not ours to call here
    code, out, err = call(words, root.path.parent)
    assert "internal error" not in err and "Traceback" not in out + err, (words, err)
    assert code in (0, 1, 3) and (code == 0 or (err.count("\n") == 1 and len(err) > 2)), (words, code, err)
    if meant is None:
        assert code != 0, words
    after = root.listing()
    deleted = meant is not None and meant.command == "delete" and code == 0
    assert after == before or (deleted and not any(name.startswith("root/c") for name in after)), (words, after)


#: Of each strategy, what is to come of it, and in how many percent of its cases at least.
SHARES: dict[str, tuple[st.SearchStrategy[Any], Any, int]] = {
    "mistakes that are lines all the same": (MISTAKES, lambda words: parse(words).command not in ("help", "version"), 25),
    "calls of the container": (CALLS, lambda words: parse(("--root", "/r", *words)).args[:1] == ("c",), 20),
    "words that are offered": (half_typed(), offered, 30),
}


@pytest.mark.parametrize("name", SHARES)
def test_how_much_of_a_strategy_reaches_what_it_tests(name: str) -> None:
    strategy, reaches, least = SHARES[name]
    assert share(strategy, reaches) >= least
