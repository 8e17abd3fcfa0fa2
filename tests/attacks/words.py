"""Command lines: mostly right, by gpurun's own table, in every form that runc's library takes; then some with a mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from gpurun.cli import rows, table
from gpurun.record import Record

Draw = Callable[..., Any]

#: Words that are somebody's own: no option, no command.
PLAIN = st.sampled_from("c gone a.b x-y 0 9 15 TERM SIGKILL KILL SIGRTMIN+1 1.5g \u00fc".split())
#: Words at which a reader of command lines breaks.
ODD = st.one_of(
    st.sampled_from(
        [
            *(
                "",
                "-",
                "--",
                "---",
                "--=",
                "-=x",
                "--root",
                "--root=",
                "--log",
                "-h",
                "--help",
                "--version",
                "-v",
                "--force",
            ),
            *("-f", "--force=maybe", "--force=", "--preserve-fds=x", "--all", "..", "/", "../c", ".c", "c/", "c" * 300),
            *("%s%n", "a\nb", "\udcff", "\udc80--", "9" * 5000, "-9", "--\u0663", "\u0662", "state", "kill", "create", "-r"),
            *("nothing", "--regex", "(a+)+$", "[", "help", "--log-format=xml", "--cgroup-manager", "65", "SIG", "sigterm"),
            *("0x9", "-0", "+9", " 9"),
        ]
    ),
    st.text(st.characters(blacklist_characters="\0"), max_size=6),
)
SWITCHES = {"1": True, "t": True, "TRUE": True, "true": True, "0": False, "f": False, "False": False}


class Line(Record):
    """The words of a command line, and what they mean: its command, arguments and options."""

    words: tuple[str, ...]
    command: str
    arguments: tuple[str, ...]
    options: dict[str, Any]


@st.composite
def given_options(draw: Draw, known: tuple[rows.Option, ...]) -> tuple[list[list[str]], dict[str, Any]]:
    """(the words of each option that is given, what they come to)."""
    words: list[list[str]] = []
    meant: dict[str, Any] = {}
    for option in draw(st.lists(st.sampled_from(known), max_size=4)) if known else []:
        name = draw(st.sampled_from([option.name, option.short or option.name]))
        dashes = draw(st.sampled_from(["-", "--"]))
        if option.kind == "switch":
            text = draw(st.sampled_from(["", *SWITCHES]))
            words.append([f"{dashes}{name}={text}" if text else f"{dashes}{name}"])
            meant[option.name] = SWITCHES[text] if text else True
            continue
        value = draw(st.integers(-5, 1 << 40)) if option.kind == "number" else draw(st.one_of(PLAIN, st.just("-x=y")))
        together = draw(st.booleans())
        words.append([f"{dashes}{name}={value}"] if together else [f"{dashes}{name}", str(value)])
        meant[option.name] = (*meant.get(option.name, ()), value) if option.kind == "texts" else value
    return words, meant


@st.composite
def lines(draw: Draw, commands: tuple[str, ...] = tuple(table.COMMANDS), first: st.SearchStrategy[str] = PLAIN) -> Line:
    """A command line of one of *commands* that is right, without global options; *first* is the first argument."""
    row = rows.command(draw(st.sampled_from(commands)))
    options, meant = draw(given_options(tuple(o for o in row.options if o.name != "help")))
    most = row.least + 2 if row.most < 0 else row.most
    arguments = draw(st.lists(PLAIN, min_size=row.least, max_size=most))
    arguments[:1] = [draw(first) for _ in arguments[:1]]
    ended = draw(st.booleans())
    words = [row.name, *[word for one in options for word in one]]
    if arguments and not row.stop and draw(st.booleans()):  # options after the first argument
        words = [row.name, arguments[0], *words[1:], *arguments[1:]]
    else:
        words += [*(["--"] if ended else []), *arguments]
    return Line(tuple(words), row.name, tuple(arguments), meant)


@st.composite
def mistaken(draw: Draw, words: tuple[str, ...]) -> tuple[str, ...]:
    """*words* with some that are others, missing, put in, or somewhere else."""
    made = list(words)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(made)))
        how = draw(st.sampled_from(["put", "other", "cut", "take", "twice", "move"]))
        if how == "put":
            made.insert(at, draw(ODD))
        elif how == "cut":
            del made[at:]
        elif at < len(made):
            if how == "other":
                made[at] = draw(ODD)
            elif how == "take":
                del made[at]
            elif how == "twice":
                made.insert(at, made[at])
            else:
                made.append(made.pop(at))
    return tuple(word.replace("\0", "") for word in made)
