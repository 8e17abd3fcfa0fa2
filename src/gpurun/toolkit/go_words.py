"""Command lines of programs that are written in Go, as click reads them."""

from __future__ import annotations

import click


def go_words(argv: list[str], switches: frozenset[str]) -> list[str]:
    """*argv* with one dash made two and ``--switch=true`` made ``--switch``, as Go programs read them; click does neither.

    *switches* are the options that are true or false.  Raises :class:`click.UsageError` for another value of one.
    """
    words: list[str] = []
    for i, word in enumerate(argv):
        if word == "--":
            return words + argv[i:]
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and len(name) > 1:
            if equals and name in switches:
                if value not in ("true", "false", "1", "0"):
                    raise click.UsageError(f"--{name}={value}: it must be true or false")
                if value in ("true", "1"):
                    words.append(f"--{name}")
                continue
            word = "--" + word.lstrip("-")
        words.append(word)
    return words
