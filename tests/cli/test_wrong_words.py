"""Wrong command lines, each command x each way to be wrong: one sentence, runc's exit code, and nothing is there afterwards.

``RUNTIME`` runs the same on runc, whose command line library prints the same words.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpurun.cli.parse import CommandUsageError, parse
from gpurun.cli.rows import command
from tests.conftest import MakeBundle
from tests.native.leaks import Leaks
from tests.native.runtime import Result, Runtime

pytestmark = pytest.mark.native

CONTAINER = "create run start state kill delete exec ps pause resume update events checkpoint restore".split()
COMMANDS = [*CONTAINER, "list", "spec", "features"]
CRUNS = ("config", "regex", "network-lock", "tcp-close", "gpu-map")  # options that runc has not
LONG = "a" * 1025  # no name of a file
BAD_IDS = ["..", "a/b", "a\nb", "é", ".", "...", "/", "../../etc", "a b", "a*", "%s", "~", "x/../y"]


def wrong(runtime: Runtime, *words: str, rc: int = 1) -> str:
    """The one sentence with which the command line *words* is refused; the log has it too, as one record."""
    log = runtime.directory / "log.json"
    log.unlink(missing_ok=True)
    done = runtime(*words, globals_=("--log", str(log), "--log-format", "json"), cwd=str(runtime.directory))
    assert done.rc == rc, (words, done)
    said = one_sentence(done)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(record["level"], record["msg"].strip()) for record in records] == [("error", said)], words
    assert not runtime.root.exists() or not os.listdir(runtime.root), words
    assert not (runtime.directory / "config.json").exists(), words
    return said


def one_sentence(done: Result) -> str:
    assert "Traceback" not in done.text and len(done.err.splitlines()) == 1, done
    return done.err.strip()


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", COMMANDS)
def test_options(runtime: Runtime, leaks: Leaks, name: str) -> None:
    """An option nobody knows, one without its value, one with a value that is none, and what is no option at all."""
    row = command(name)
    args = ["x", "true"] if name == "exec" else ["x"] if name in CONTAINER else []
    assert wrong(runtime, name, "-bogus=1", *args) == "flag provided but not defined: -bogus"
    assert wrong(runtime, name, "--=x", *args) == "bad flag syntax: --=x"
    known = [option for option in row.options if option.visible and option.name not in CRUNS]
    kinds = {option.kind: option for option in reversed(known)}  # the first of each kind
    for option in kinds.values():
        if option.kind == "switch":
            said = f'invalid boolean value "maybe" for -{option.name}: parse error'
            assert wrong(runtime, name, f"--{option.name}=maybe", *args) == said
        elif option.kind == "number":
            said = f'invalid value "1x" for flag -{option.name}: parse error'
            assert wrong(runtime, name, f"--{option.name}=1x", *args) == said
        else:
            assert wrong(runtime, name, f"-{option.name}") == f"flag needs an argument: -{option.name}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_without_its_value(name: str) -> None:
    for option in command(name).options:
        for word in (f"--{option.name}", f"-{option.name}", *([f"-{option.short}"] if option.short else [])):
            words = [name, f"{word}=maybe"] if option.kind == "switch" else [name, word]
            with pytest.raises(
                CommandUsageError, match=f"(invalid boolean value .* for |flag needs an argument: )-{word.lstrip('-')}"
            ):
                parse(words)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", COMMANDS)
def test_counts(runtime: Runtime, leaks: Leaks, name: str) -> None:
    """Too few arguments and too many; ``--`` is none, and what comes after it is one."""
    row = command(name)
    if row.least:
        assert f'"{name}" requires ' in wrong(runtime, name)
        assert f'"{name}" requires ' in wrong(runtime, name, "--")
    if row.most >= 0:
        for word in ("-", "--bogus"):
            assert f'"{name}" requires ' in wrong(runtime, name, "--", *[word] * (row.most + 1))


@pytest.mark.sweep(5)
@pytest.mark.parametrize("name", CONTAINER)
def test_ids(runtime: Runtime, bundle: MakeBundle, name: str) -> None:
    """An id names a directory: it is one plain word, so that it can lead nowhere, and an error for each command."""
    b = bundle()
    b.linux["cgroupsPath"] = f"{runtime.bed.subtree}/x"
    b.write()
    more = {"create": ["--bundle", str(b.directory)], "run": ["--bundle", str(b.directory)]}
    more["restore"] = ["--bundle", str(b.directory), "--image-path", "/"]
    more["checkpoint"] = ["--image-path", str(runtime.directory / "image")]
    before, after = more.get(name, []), ["true"] if name == "exec" else []
    rc = 255 if name == "exec" else 1
    for bad in BAD_IDS if name in ("create", "state") else BAD_IDS[:4]:
        if bad == "..." and not runtime.name.startswith("gpurun"):
            continue
        said = wrong(runtime, name, *before, bad, *after, rc=rc)
        assert "invalid container ID format" in said, bad
        assert not runtime.name.startswith("gpurun") or "letters, digits and _ + - . are allowed" in said, bad
    assert "container id cannot be empty" in wrong(runtime, name, *before, "", *after, rc=rc)
    said = wrong(runtime, name, *before, LONG, *after, rc=rc)
    if name != "restore":  # which looks for the images first
        assert ("file name too long" if name in ("create", "run") else "does not exist") in said
    assert not (runtime.directory / "image").exists()


def test_delete_force_of_a_long_id(runtime: Runtime, leaks: Leaks) -> None:
    """There is no such container: no error, as for every other id."""
    assert runtime("delete", "--force", LONG) == (0, "", "")


def test_globals(runtime: Runtime, leaks: Leaks) -> None:
    """conmon-rs repeats them, and the last one counts; one that is wrong is one sentence, too."""
    logs = [runtime.directory / name for name in ("first", "second")]
    twice = ("--root", "/nonexistent/r", f"-root={runtime.root}", "--log", str(logs[0]), f"--log={logs[1]}", "--debug=false")
    done = runtime("state", "nowhere", globals_=twice)
    assert done.rc == 1 and "container does not exist" in one_sentence(done)
    assert not logs[0].exists() and "container does not exist" in logs[1].read_text()
    for words, said in (
        (("--bogus",), "flag provided but not defined: -bogus"),
        (("--log-format=xml",), "invalid log-format: xml"),
        (("--systemd-cgroup=2",), 'invalid boolean value "2" for -systemd-cgroup: parse error'),
        (("--root=/",), "Option --root argument should not be set to /"),
    ):
        done = runtime("state", "nowhere", globals_=words)
        assert done.rc == 1 and said in one_sentence(done).replace('\\"', '"'), words
    done = runtime("frobnicate")
    assert done.rc == 3 and "No help topic for 'frobnicate'" in one_sentence(done)


def test_a_log_that_cannot_be_opened(runtime: Runtime, leaks: Leaks) -> None:
    for log in (Path("/nonexistent/log"), runtime.directory):
        done = runtime("state", "nowhere", globals_=("--log", str(log)))
        assert done.rc == 1 and str(log) in one_sentence(done)
