"""The log and the last words: text or JSON records, in the formats that runc's callers read back.

With ``--log FILE`` records go to the file and errors also, as bare text, to stderr; without it records go to stderr.
containerd's shim takes the last record of level ``error`` from the file; Podman reads the whole file as one object, so
a warning must not stand before an error there: in a JSON file warnings wait for :func:`close`, and an error drops them.
"""

from __future__ import annotations

import posix
import time

from gpurun.errors import GpurunError, escape, oserror_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpurun.invocation import Globals

_STDERR = 2
_COLOURS = {"error": "31", "warning": "33", "info": "36", "debug": "37"}
_TTY_NAMES = {"error": "ERRO", "warning": "WARN", "info": "INFO", "debug": "DEBU"}


class _Log:
    """Where records go.  One for the process, as there is one stderr."""

    fd = _STDERR
    json = False
    debug = False
    waiting: list[str] = []
    copy = -1  # a second file, where the site wants one
    copy_debug = False
    send: Callable[[str, str], None] | None = None  # (level, message) → a daemon of the host's


def open_log(options: Globals) -> None:
    """Send records where *options* say, from now on.  The file is made with mode 0644 and appended to; ``file:PATH``,
    ``journald:NAME`` and ``syslog:NAME`` are taken as crun takes them.

    Raises :class:`GpurunError` when it cannot be opened: an error that cannot be read must not come after a container is
    made.
    """
    _Log.json = options.log_format == "json"
    _Log.debug = options.debug
    kind, colon, rest = options.log.partition(":")
    if colon and kind in ("journald", "syslog"):
        from gpurun.logsocket import sender

        _Log.send = sender(kind, rest or "gpurun")
        return
    path = rest if colon and kind == "file" else options.log
    if not path:
        return
    try:
        _Log.fd = posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC, 0o644)
    except OSError as e:
        raise GpurunError(f"cannot open the log file {oserror_text(e)}") from None


def copy_to(path: str, debug: bool) -> None:
    """Write text records to the file *path* as well, with *debug* all of them; one that cannot be opened is a warning."""
    try:
        _Log.copy = posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC, 0o644)
        _Log.copy_debug = debug
    except OSError as e:
        warning(f"cannot open the log file {oserror_text(e)}")


def close() -> None:
    """Write the warnings that waited, unless an error has been said.  A command may well return another code than 0: ``run``
    that of the container, which has been killed for want of memory, as a warning says."""
    if _Log.waiting:
        _write(_Log.fd, "".join(_Log.waiting))
    _Log.waiting = []


def error(message: str, bare: bool = False, kind: str = "") -> None:
    """Say why the command failed: once, as the last thing.  With *bare* stderr has only the text, also without ``--log``,
    unless JSON is asked for or people read it.

    Under GPURUN_LIBRARY only the log has it, with *kind*, the name of the exception: stderr is the container's there.
    """
    _Log.waiting = []
    _copy("error", message)
    elsewhere = _Log.fd != _STDERR or _Log.send is not None
    if _Log.json and _Log.fd != _STDERR and b"GPURUN_LIBRARY" in posix.environ:
        _write(_Log.fd, record("error", message).replace("{", f'{{"kind":"{kind}",', 1))
        return
    bare = bare and not elsewhere and not _Log.json and not posix.isatty(_STDERR)
    if not bare:
        _put("error", message)
    if bare or elsewhere:
        _write(_STDERR, escape(message, keep='"\\') + "\n")


def warning(message: str) -> None:
    """Say what may surprise, but stops nothing."""
    _copy("warning", message)
    if _Log.json and _Log.fd != _STDERR and not _Log.debug:
        _Log.waiting = [*_Log.waiting, record("warning", message)]
    else:
        _put("warning", message)


def warnings(messages: Iterable[str]) -> None:
    """:func:`warning` for each of *messages*."""
    for message in messages:
        warning(message)


def info(message: str) -> None:
    """Say what a command that runs for long has done."""
    _copy("info", message)
    _put("info", message)


def debug(message: str) -> None:
    """Say what is being done, with ``--debug``.  Where the text costs something to make, ask :func:`debugging` first."""
    if _Log.debug:
        _put("debug", message)
    if _Log.copy_debug:
        _copy("debug", message)


def debugging() -> bool:
    """Whether records of level ``debug`` are written anywhere."""
    return _Log.debug or _Log.copy_debug


def _put(level: str, message: str) -> None:
    if _Log.send is not None:
        _Log.send(level, message.rstrip("\n"))
    else:
        _write(_Log.fd, record(level, message))


def record(level: str, message: str) -> str:
    """One line of the log, in logrus' formats; the time is RFC 3339 in UTC, in whole seconds."""
    message = message.rstrip("\n")
    if _Log.json:
        from gpurun.formats.jsontext import quote  # most commands never say anything

        return f'{{"level":"{level}","msg":{quote(message)},"time":"{now()}"}}\n'
    if _Log.fd == _STDERR and posix.isatty(_STDERR):
        shown = escape(message, keep='"\\')
        if posix.environ.get(b"NO_COLOR") or posix.environ.get(b"TERM") == b"dumb":  # https://no-color.org
            return f"{_TTY_NAMES[level]}[0000] {shown}\n"
        return f"\x1b[{_COLOURS[level]}m{_TTY_NAMES[level]}\x1b[0m[0000] {shown}\n"
    return _text(level, message)


def _text(level: str, message: str) -> str:
    return f'time="{now()}" level={level} msg="{escape(message)}"\n'


def _copy(level: str, message: str) -> None:
    if _Log.copy >= 0:
        _write(_Log.copy, _text(level, message.rstrip("\n")))


def now() -> str:
    """The time as RFC 3339 in UTC, in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _write(fd: int, text: str) -> None:
    """All of *text*; what cannot be written is lost, because there is no one left to tell."""
    data = text.encode("utf-8", "replace")
    try:
        while data:
            data = data[posix.write(fd, data) :]
    except OSError:  # a closed pipe or a full disk must not hide the exit code
        pass
