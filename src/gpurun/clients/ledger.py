"""What `install` has written for clients, noted before it is written: for `uninstall all`, for the package's removal, and
for an install that was killed before the client had read its new configuration.

The note of root is /var/lib/gpurun/clients.json, that of another user in ``$XDG_STATE_HOME/gpurun`` (~/.local/state).
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gpurun import log
from gpurun.clients import files
from gpurun.clients.install import Setup
from gpurun.clients.toml_files import RuntimeEntry
from gpurun.errors import ConfigError, GpurunError, strerror_lower
from gpurun.linux.procfs import boot_id
from gpurun.record import Record, replace

_NAME = "gpurun/clients.json"
_LOCK = ".gpurun.install"
#: How long one install waits for another: seconds.  It writes some files and asks the client's own program for a check.
PATIENCE = 120.0


class Entry(Record):
    """*client* has, in its file *path* (*drop_in*: in that one), the runtime *name*, the program *binary*.

    *program* is the gpurun that did it.  *unread* is empty once the client has read it; else the boot and the nanosecond of
    CLOCK_MONOTONIC in which it was written, and *needs* what makes the client read it: ``restart`` or ``reload``.
    """

    client: str
    name: str
    path: str
    drop_in: str
    binary: str
    program: str
    unread: str = ""
    needs: str = ""

    def setup(self) -> Setup:
        """What `uninstall` takes back."""
        return Setup(self.client, RuntimeEntry(self.name, self.binary), self.path, self.drop_in)

    def same_place(self, other: Entry) -> bool:
        """Whether *other* is of the same runtime in the same file of the same client."""
        return (self.client, self.name, self.path) == (other.client, other.name, other.path)


def new_entry(setup: Setup, program: str, whole: bool) -> Entry:
    """The note of *setup*, written now and not yet read by the client; *whole*: a reload is not enough for it."""
    drop_in = os.path.abspath(setup.drop_in) if setup.drop_in else ""
    path, needs = os.path.abspath(setup.file()), "restart" if whole else "reload"
    return Entry(setup.client, setup.entry.name, path, drop_in, setup.entry.binary, program, now(), needs)


def entries() -> tuple[Entry, ...]:
    """All notes that can be read; a warning for each other one."""
    path = _path()
    try:
        return tuple(
            [Entry(**{name: str(entry[name]) for name in Entry._fields}) for entry in json.loads(files.read(path) or "[]")]
        )
    except (OSError, ConfigError, ValueError, TypeError, KeyError) as e:
        why = strerror_lower(e.errno or 0) if isinstance(e, OSError) else str(e)
        log.warning(f"{path}, the record of what `install` has changed, cannot be read; a new one is begun: {why}")
        return ()


def find(entry: Entry) -> Entry | None:
    """The note of the same client, file and runtime as *entry*."""
    return next((other for other in entries() if other.same_place(entry)), None)


def note(entry: Entry) -> None:
    """Note *entry*, in place of the one of the same client, file and runtime.  Raises :class:`GpurunError`."""
    _write([*[other for other in entries() if not other.same_place(entry)], entry])


def read_by_client(entry: Entry) -> None:
    """The client has read what *entry* noted.  Raises :class:`GpurunError`."""
    if find(entry) is not None:
        note(replace(entry, unread=""))


def forget(entry: Entry) -> None:
    """*entry* has been taken back.  Raises :class:`GpurunError`."""
    known = entries()
    left = [other for other in known if not other.same_place(entry)]
    if len(left) != len(known):
        _write(left)


def now() -> str:
    """This moment, as :attr:`Entry.unread` says it."""
    return f"{boot_id()} {time.monotonic_ns()}"


def since(unread: str) -> int | None:
    """The nanosecond of CLOCK_MONOTONIC of *unread*; None when that was before this boot, or is nothing."""
    boot, _, moment = unread.partition(" ")
    return int(moment) if moment.isdecimal() and moment.isascii() and len(moment) < 20 and boot == boot_id() else None


@contextmanager
def exclusive_lock() -> Iterator[None]:
    """One install or uninstall of a user at a time.  Raises :class:`GpurunError` when the other one takes too long."""
    folder = "/run" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", "")
    if not folder:  # nowhere that is this user's own
        yield
        return
    path = f"{folder}/{_LOCK}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise GpurunError(f"lock {path}: {strerror_lower(e.errno or 0)}") from None
    try:
        _lock(fd, path)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, path: str) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                text = f"another `gpurun install` or `uninstall` has been at work for {PATIENCE:.0f} s (it holds {path})"
                raise GpurunError(f"{text}: wait until it has finished") from None
            time.sleep(0.1)


def _write(left: list[Entry]) -> None:
    path = _path()
    files.remove_strays(path)
    if left:
        document = [{name: getattr(entry, name) for name in Entry._fields} for entry in left]
        files.write(path, json.dumps(document, indent=1) + "\n")
        return
    with suppress(FileNotFoundError):
        os.unlink(path)
    with suppress(OSError):  # layers of bundles are there, too
        os.rmdir(os.path.dirname(path))


def _path() -> str:
    if os.geteuid() == 0:
        return f"/var/lib/{_NAME}"
    return f"{os.environ.get('XDG_STATE_HOME') or os.path.expanduser('~/.local/state')}/{_NAME}"
