"""Text for people, as wide as their terminal; what goes into a file or a pipe is left as it is."""

from __future__ import annotations

import posix

from gpurun.output import one_line, write_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_STDOUT = 1
_USUAL = 80
_LEAST = 40  # in a narrower window the terminal itself may break lines


def width() -> int:
    """Columns of the terminal that stdout is, by COLUMNS or the terminal itself; 0 when stdout is not a terminal."""
    if not posix.isatty(_STDOUT):
        return 0
    said = posix.environ.get(b"COLUMNS", b"")
    columns = int(said) if said.isdigit() and len(said) < 6 else 0
    if not columns:
        try:
            columns = posix.get_terminal_size(_STDOUT).columns
        except OSError:
            columns = 0
    return max(columns or _USUAL, _LEAST)


def colour_text(text: str, colour: str) -> str:
    """*text* in *colour* (the number of SGR, console_codes(4); "" for none) where stdout is a terminal that wants it."""
    if not colour or not posix.isatty(_STDOUT) or posix.environ.get(b"NO_COLOR") or posix.environ.get(b"TERM") == b"dumb":
        return text
    return f"\x1b[{colour}m{text}\x1b[0m"


def write_wrapped(lines: Iterable[str], indent: int = 4) -> None:
    """Write each of *lines* to stdout as one line, escaped, and folded to the terminal's width.  Raises GpurunError."""
    write_document(fold("".join([f"{one_line(line)}\n" for line in lines]), width(), indent))


def fold(text: str, columns: int, indent: int = 4) -> str:
    """*text* in lines of at most *columns* (0: any number), broken only between words: a path can still be copied.

    What continues a line stands *indent* columns to the right of where it began.
    """
    if not columns or all(len(line) <= columns for line in text.splitlines()):
        return text
    import textwrap

    made = []
    for line in text.splitlines():
        begins = len(line) - len(line.lstrip(" ")) + indent
        wrapper = textwrap.TextWrapper(
            columns,
            subsequent_indent=" " * min(begins, columns // 2),
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
        made += wrapper.wrap(line) or [""]
    return "\n".join(made) + "\n"
