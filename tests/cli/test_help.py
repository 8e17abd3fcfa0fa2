"""Help for people: sections of commands, a help of its own for each command, with an example, in any width."""

from __future__ import annotations

import re
import shlex

import pytest

from gpurun.cli.human import help_text
from gpurun.cli.parse import parse
from gpurun.cli.rows import command
from gpurun.cli.table import COMMANDS, GROUPS
from gpurun.cli.topics import BELOW, EXAMPLES, SECTIONS

from .test_main import gpurun

TOPICS = [(name,) for name in COMMANDS] + [(name, below) for name, names in BELOW.items() for below in names]
ids = " ".join


def test_each_command_is_in_one_section() -> None:
    assert sorted([name for names in SECTIONS.values() for name in names]) == sorted(COMMANDS)
    overall = gpurun("--help").stdout
    places = [overall.index(f"\n{title}:\n") for title in SECTIONS]
    assert places == sorted(places)
    for title, names in SECTIONS.items():
        section = overall.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines() if line[2] != " "] == list(names)


def test_the_commands_below_are_those_there_are() -> None:
    assert {name: tuple(below) for name, below in BELOW.items()} == GROUPS
    for group, below in GROUPS.items():
        done = gpurun(group, "frobnicate")
        assert [name for name in below if name not in done.stderr] == []


@pytest.mark.parametrize("topic", TOPICS, ids=ids)
def test_each_has_a_help_of_its_own_with_a_good_example(topic: tuple[str, ...]) -> None:
    text = help_text(*topic)
    assert text.startswith(f"Usage: gpurun {' '.join(topic)} ")
    shown = text.partition("\nExamples:\n")[2].splitlines()
    lines = EXAMPLES[" ".join(topic)]
    assert shown == [f"  {line}" for line in lines] and all(len(line) <= 78 for line in lines)
    examples = [shlex.split(line) for line in lines if not line.startswith("#")]
    assert examples
    for words in examples:
        found = parse(words[1:])
        assert words[0] == "gpurun" and found.command in COMMANDS
        assert topic[0] in (found.command, "create") and topic[1:] in ((), found.args[:1]), words


def options_in(text: str) -> set[str]:
    section = text.partition("\nOptions:\n")[2].partition("\n\n")[0]
    return set(re.findall(r"^  (?:-\w, )?--([\w.-]+)", section, re.M)) - {"help"}


@pytest.mark.parametrize("name", GROUPS)
def test_each_below_has_its_own_options_and_no_others(name: str) -> None:
    visible = [option for option in command(name).options if option.visible]
    for below in BELOW[name]:
        text = help_text(name, below)
        assert options_in(text) == {option.name for option in visible if below in option.takers}
        assert [other for other in BELOW[name] if f" {other}: " in text] == []
    assert not options_in(help_text(name)) and all(f"\n  {below} " in help_text(name) for below in BELOW[name])


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("gpu doctor --help", "gpu doctor"),
        ("gpu --help doctor", "gpu doctor"),
        ("help gpu doctor", "gpu doctor"),
        ("gpu doctor -h", "gpu doctor"),
        ("cdi generate --mode nvml --help", "cdi generate"),
        ("cdi transform root --help", "cdi transform"),
        ("gpu frobnicate --help", "gpu"),
        ("gpu --help", "gpu"),
        ("explain --help", "explain"),
        ("explain BUNDLE --help", "explain"),
        ("help explain gpu", "explain"),
    ],
)
def test_ways_to_ask(words: str, usage: str) -> None:
    done = gpurun(*words.split())
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"Usage: gpurun {usage} [OPTIONS]")


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("topic", [(), ("create",), ("gpu",), ("cdi", "generate"), ("install-names",)], ids=ids)
def test_help_in_any_width(topic: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is wider than asked for, and no option, path or name is broken at a hyphen or a slash."""
    monkeypatch.setenv("COLUMNS", str(columns))
    text = help_text(*topic)
    examples = text.partition("\nExamples:\n")[2]
    assert max(len(line) for line in text.removesuffix(examples).splitlines()) <= columns
    monkeypatch.setenv("COLUMNS", "1000")
    assert set(text.split()) == set(help_text(*topic).split())


def test_completion_below_a_command() -> None:
    def complete(*words: str) -> list[str]:
        line = shlex.join(["gpurun", *words])
        env = {"_GPURUN_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
        return [line.partition(",")[2] for line in gpurun(env=env).stdout.split()]

    assert complete("gpu", "") == list(BELOW["gpu"]) and complete("cdi", "gen") == ["generate"]
    assert "--device-id" in complete("cdi", "generate", "--de") and "--device-id" not in complete("cdi", "list", "--")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("run", "--detatch", "x"), ("--detach", "`gpurun run --help`")),
        (("list", "--fromat=json"), ("--format", "`gpurun list --help`")),
        (("--rot", "/x", "list"), ("--root", "`gpurun --help`")),
        (("run", "--hlep"), ("--help", "`gpurun run --help`")),
    ],
)
def test_a_misspelt_option_is_a_word_and_no_page(words: tuple[str, ...], meant: tuple[str, str]) -> None:
    done = gpurun(*words)
    assert done.returncode == 1 and f'(did you mean \\"{meant[0]}\\"?)' in done.stderr
    first, blank, more = done.stdout.split("\n", 2)
    assert first.endswith(f'(did you mean "{meant[0]}"?)') and not blank
    assert more == f"{meant[1]} lists the options.\n"


def test_a_wrong_command_line_shows_the_right_help() -> None:
    done = gpurun("cdi", "generate", "--frobnicate")
    assert done.returncode == 1 and done.stdout.startswith("Incorrect Usage: flag provided but not defined: -frobnicate")
    assert "Usage: gpurun cdi " in done.stdout
