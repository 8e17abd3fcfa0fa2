"""Files of clients: read, compared, written in one step with the one before kept beside it, and taken back."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from gpurun.errors import ConfigError
from gpurun.linux.files import write_atomically
from gpurun.record import Record

#: What a file is kept as before gpurun changes it for the first time.
KEPT = ".before-gpurun"
_COLOURS = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}


class Change(Record):
    """The new content *text* of the file *path* (empty: stdout); None: the file goes."""

    path: str
    text: str | None
    before: str | None = None  # None: there is no such file


def read(path: str) -> str | None:
    """The text of the file *path*, None when there is none.  Raises :class:`ConfigError`, OSError."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise ConfigError(path, "is not UTF-8 text") from None


def write(path: str, text: str) -> None:
    """Write the file in one step that lasts, with the mode that it had; a symbolic link stays one.  Raises OSError."""
    file = Path(os.path.realpath(path))
    file.parent.mkdir(parents=True, exist_ok=True)
    mode = file.stat().st_mode & 0o7777 if file.exists() else 0o644
    write_atomically(str(file), text.encode(), mode, durable=True, exact=True)


def apply(change: Change) -> None:
    """Make *change*; the first one of a file leaves the file before it as :data:`KEPT`.  Raises OSError."""
    kept = change.path + KEPT
    if change.text is None:
        Path(change.path).unlink(missing_ok=True)
        _remove_if_empty(os.path.dirname(change.path))
        return
    if change.before is not None and not os.path.lexists(kept):
        write(kept, change.before)
        os.chmod(kept, os.stat(change.path).st_mode & 0o7777)
    write(change.path, change.text)


def take_back(change: Change) -> None:
    """Put back what was before *change*.  Raises OSError."""
    if change.before is None:
        Path(change.path).unlink(missing_ok=True)
    else:
        write(change.path, change.before)


def difference(change: Change, colours: bool) -> str:
    """*change* as a unified diff, with *colours* as people's terminals show them."""
    before, after = (change.before or "").splitlines(), (change.text or "").splitlines()
    names = (
        change.path if change.before is not None else "/dev/null",
        change.path if change.text is not None else "/dev/null",
    )
    lines = list(difflib.unified_diff(before, after, *names, lineterm=""))
    if colours:
        lines = [f"{_COLOURS[line[0]]}{line}\033[0m" if line[:1] in _COLOURS else line for line in lines]
    return "".join([f"{line}\n" for line in lines])


def _remove_if_empty(directory: str) -> None:
    """A directory of drop-ins that was made for one file goes with it."""
    try:
        os.rmdir(directory)
    except OSError:  # not empty, or not ours: it stays
        pass
