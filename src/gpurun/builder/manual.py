"""The manual pages: gpurun(1) and a page for each command, from the table of commands and the help that people get.

Written in the macros of man(7).  What is typed as it is stands in bold, what is to be replaced in italics.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from gpurun import __version__
from gpurun.cli import rows
from gpurun.cli.table import COMMANDS
from gpurun.cli.topics import BELOW, DESCRIPTION, ENVIRONMENT, EXAMPLES, EXIT, FILES, SECTIONS

SUMMARY = "an OCI container runtime with the GPU built in"


def pages(date: str) -> dict[str, str]:
    """File name → text of each page; *date* (2026-11-22) is when they were last changed."""
    made = {"gpurun.1": _overview(date)}
    for name in COMMANDS:
        made[f"gpurun-{name}.1"] = _command(rows.command(name), date)
    return made


def _overview(date: str) -> str:
    lines = [
        *_head("gpurun", SUMMARY, date),
        ".SH SYNOPSIS",
        ".B gpurun",
        "[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]",
    ]
    lines += [".SH DESCRIPTION", *_paragraphs(DESCRIPTION), ".SH OPTIONS", *_options(rows.global_options())]
    lines.append(".SH COMMANDS")
    for title, names in SECTIONS.items():
        lines.append(f".SS {_text(title)}")
        for name in names:
            lines += [".TP", f".BR gpurun\\-{_text(name)} (1)", _text(_sentence(rows.command(name).help))]
    for title, entries in (("FILES", FILES), ("ENVIRONMENT", ENVIRONMENT), ("EXIT STATUS", EXIT)):
        lines.append(f".SH {title}")
        for name, text in entries:
            lines += [".TP", f".B {_text(name)}", _text(_sentence(text))]
    return _page(lines, ["runc(8)", *[f"gpurun-{name}(1)" for names in SECTIONS.values() for name in names]])


def _command(row: rows.Command, date: str) -> str:
    lines = _head(f"gpurun-{row.name}", row.help, date)
    lines += [".SH SYNOPSIS", f".B gpurun {_text(row.name)}", f"[\\fIOPTIONS\\fR] {_arguments(row.arguments)}".rstrip()]
    lines += [".SH DESCRIPTION", _text(_sentence(row.help))]
    below = BELOW.get(row.name, {})
    if below:
        lines.append(".SH COMMANDS")
        for name, (arguments, text) in below.items():
            lines += [
                ".TP",
                f".B gpurun {_text(row.name)} {_text(name)} {_arguments(arguments)}".rstrip(),
                _text(_sentence(text)),
            ]
    if any(option.visible for option in row.options):
        lines += [".SH OPTIONS", *_options(row.options, tuple(below))]
    lines += [".SH EXAMPLES", *_examples(EXAMPLES[row.name])]
    for name in below:
        lines += _examples(EXAMPLES[f"{row.name} {name}"])
    return _page(lines, ["gpurun(1)"])


def _head(name: str, text: str, date: str) -> list[str]:
    title = _text(name.upper())
    return [
        f'.TH {title} 1 {date} "gpurun {__version__}" "User Commands"',
        ".nh",
        ".ad l",
        ".SH NAME",
        f"{_text(name)} \\- {_text(text)}",
    ]


def _page(lines: list[str], see: Iterable[str]) -> str:
    named = [re.fullmatch(r"(.+)(\(\d\))", name) for name in see]
    lines += [".SH SEE ALSO", ",\n".join([f".BR {_text(found[1])} {found[2]}" for found in named if found])]
    return "\n".join(lines).replace(",\n.BR", " ,\n.BR") + "\n"


def _options(options: Iterable[rows.Option], below: tuple[str, ...] = ()) -> list[str]:
    """*options* of a group with the commands *below*, of which some options are only for a few."""
    lines = []
    for option in options:
        if not option.visible:
            continue
        names = [f"\\fB\\-{option.short}\\fR"] if option.short else []
        names.append(f"\\fB\\-\\-{_text(option.name)}\\fR")
        value = {"switch": "", "number": "N", "file": "FILE", "dir": "DIR"}.get(option.kind, "TEXT")
        lines += [".TP", ", ".join(names) + (f" \\fI{value}\\fR" if value else "")]
        whom = f"{', '.join(option.takers)}: " if option.takers != below else ""
        lines.append(_text(whom + option.help) + (" (may be given again)" if option.kind == "texts" else ""))
    return lines


def _examples(shown: Iterable[str]) -> list[str]:
    lines = []
    for line in shown:
        lines += (
            [f".PP\n{_text(_sentence(line[2:]))}"] if line.startswith("# ") else [".PP", ".EX", f"  {_text(line)}", ".EE"]
        )
    return lines


def _paragraphs(text: str) -> list[str]:
    parts = [" ".join(part.split()) for part in text.split("\n\n")]
    return [line for part in parts for line in (".PP", _text(part))][1:]


def _arguments(words: str) -> str:
    return " ".join([f"\\fI{_text(word)}\\fR" for word in words.split()])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _text(text: str) -> str:
    """*text* for roff: no escape, no command at the begin of a line, hyphens that can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq").replace("…", "...")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def main() -> int:
    """Write the manual pages; the exit code."""
    parser = argparse.ArgumentParser(prog="gpurun.builder.manual", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    for name, text in pages(time.strftime("%Y-%m-%d", time.gmtime(seconds))).items():
        (output / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
