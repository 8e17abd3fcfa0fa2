"""Every look at the host that the discovery takes; who wants to remember its answer is told of each."""

from __future__ import annotations

import posix

from gpurun.linux.files import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.host.facts import Listener

#: Who is told what is looked at; nobody, unless the answer is to be remembered.
listener: Listener | None = None


def lstat(path: str) -> posix.stat_result | None:
    """lstat(2) of *path*, None where nothing is there.  Raises OSError for any other failure."""
    try:
        found = posix.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        found = None
    if listener is not None:
        listener.node(path, found)
    return found


def exists(path: str) -> bool:
    """Whether there is something at *path*, links followed."""
    try:
        found = posix.stat(path)
    except OSError:
        found = None
    if listener is not None:
        listener.there(path, found)
    return found is not None


def names_in(path: str) -> list[str]:
    """The names in the directory *path*, sorted; none when it is not there."""
    try:
        names = sorted(posix.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    if listener is not None:
        listener.names(path, names)
    return names


def read_bytes(path: str, limit: int = 1 << 16) -> bytes | None:
    """The first *limit* bytes of *path*, ``None`` when it is not there."""
    try:
        content = read_file(path, limit)
    except (FileNotFoundError, NotADirectoryError):
        content = None
    if listener is not None:
        listener.text(path, limit, content)
    return content


def read_text(path: str) -> str:
    """The first 64 KiB of *path* as text, empty when it is not there."""
    return (read_bytes(path) or b"").decode("utf-8", "replace")


def fields(path: str) -> dict[str, str]:
    """Name → value of the lines ``Name: value`` of a file of procfs."""
    pairs = [line.partition(":") for line in read_text(path).splitlines()]
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}
