"""The way out for all that a command prints: all of it, or an error that says so; nothing in it moves a terminal's cursor.

Names, paths and variables come from images, from containers and from other users.  So what is printed for people goes
through :func:`write_lines` or :func:`write_stdout`, which escape what a terminal would obey.  No ``io`` is needed.
"""

from __future__ import annotations

import posix

from gpurun.errors import GpurunError, escape, strerror_lower

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_STDERR = 2
#: What stays in a text of several lines: it does no harm where a whole text is ours.
_KEPT = '"\\\t\n'


def write_stdout(text: str) -> None:
    """Write *text* to fd 1, with control and format characters escaped, all but line ends and tabs.

    For texts whose lines are known (JSON, help).  Lines that hold what others have written go through :func:`write_lines`.
    Raises :class:`GpurunError` when the reader is gone or the disk is full.
    """
    write_document(escape(text, _KEPT))


def write_lines(lines: Iterable[str]) -> None:
    """Write each of *lines* as one line to fd 1: a line end within it is escaped as well.  Raises :class:`GpurunError`."""
    write_document("".join([f"{one_line(line)}\n" for line in lines]))


def write_document(text: str) -> None:
    """Write *text* as it is: a file for another program, or what has been escaped before and has colours since.

    Raises :class:`GpurunError`.
    """
    _write(text.encode("utf-8", "surrogateescape"))


def write_stderr(text: str) -> None:
    """Write *text* as one line to fd 2, escaped; what cannot be written is lost."""
    data = f"{one_line(text)}\n".encode()
    try:
        while data:
            data = data[posix.write(_STDERR, data) :]
    except OSError:  # there is no one left to tell
        pass


def one_line(text: str) -> str:
    """*text* as people are shown it: on one line, control and format characters escaped."""
    return escape(text, '"\\')


def _write(data: bytes) -> None:
    try:
        while data:
            data = data[posix.write(1, data) :]
    except OSError as e:
        raise GpurunError(f"cannot write to stdout: {strerror_lower(e.errno or 0)}") from None


class _Binary:
    """What is below a text stream."""

    def write(self, data: bytes) -> int:
        _write(data)
        return len(data)

    def flush(self) -> None:
        """Nothing waits."""


class Stdout:
    """In the place of ``sys.stdout``, for the libraries that print by themselves (click, argparse)."""

    encoding, errors = "utf-8", "surrogateescape"
    buffer = _Binary()

    def write(self, text: str) -> int:
        """Write *text* to stdout; how many characters that were."""
        write_stdout(text)
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        """Whether stdout is a terminal."""
        return posix.isatty(1)

    def fileno(self) -> int:
        """The descriptor of stdout."""
        return 1
