"""Every look at the host that the discovery takes; a listener that records the facts is called for each."""

from __future__ import annotations

import posix
from _stat import S_ISCHR
from errno import EMFILE, ENFILE, ENOMEM

from gpurun.linux.files import read_file, read_regular
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpurun.gpu.host.facts import Listener

#: The listener that is called for each look; None unless the answer is to be kept.
listener: Listener | None = None


class HostNode(Record):
    """A device node of the host, *exists* or merely known by its numbers; *path* is where the container gets it."""

    path: str
    host_path: str
    major: int
    minor: int
    exists: bool
    mode: int = 0o666
    gid: int = 0


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


def read_attribute(path: str, limit: int = 4096) -> str:
    """The first *limit* bytes of the attribute *path* of sysfs as text, without blanks around it; empty if it is unreadable.

    An attribute has a page at most, and may answer with any error: a GPU that sleeps, is denied or has gone.
    Raises OSError where the caller has no descriptors or memory left: a GPU that is not seen would renumber the others.
    """
    try:
        content: bytes | None = read_regular(path, limit)
    except OSError as e:
        if e.errno in (EMFILE, ENFILE, ENOMEM):
            raise
        content = None
    if listener is not None:
        listener.text(path, limit, content)
    return (content or b"").decode("ascii", "replace").strip()


def link_text(path: str) -> str:
    """The text of the symbolic link *path*, empty where there is none."""
    try:
        text = posix.readlink(path)
    except OSError:
        text = ""
    if listener is not None:
        exists(path)  # a link of sysfs to another device is one to another inode
    return text


def read_text(path: str) -> str:
    """The first 64 KiB of *path* as text, empty when it is not there."""
    return (read_bytes(path) or b"").decode("utf-8", "replace")


def fields(path: str) -> dict[str, str]:
    """Name → value of the lines ``Name: value`` of a file of procfs."""
    pairs = [line.partition(":") for line in read_text(path).splitlines()]
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def node_as_it_is(root: str, path: str) -> HostNode | None:
    """The character device at *path* below *root*, whatever its numbers; ``None`` for anything else, a link too."""
    stat = lstat(root + path)
    if stat is None or not S_ISCHR(stat.st_mode):
        return None
    major, minor = posix.major(stat.st_rdev), posix.minor(stat.st_rdev)
    return HostNode(path, root + path, major, minor, True, stat.st_mode & 0o777, stat.st_gid)
