"""What the discovery looks at, written down while it does, so that its answer can be used for as long as that is the same.

Everything that is read of a host goes through :mod:`gpurun.gpu.nvidia.host.roots` or
:mod:`gpurun.gpu.nvidia.host.libraries`, and both tell the :class:`Listener` that listens, before they look.  What the
kernel says (procfs, sysfs, device nodes) is kept whole. Files, links and directories are kept by device and inode; files
and links, and directories in which much was missing, also by ctime, which any change moves, be it of content, names, owner
or mode.
"""

from __future__ import annotations

import posix
import time
from _stat import S_ISDIR, S_ISLNK
from errno import ENOENT, ENOTDIR

from gpurun.linux.files import O_CLOEXEC, Fd, read_fd

TYPE_CHECKING = False
if TYPE_CHECKING:
    #: (path, st_dev, st_ino, st_ctime_ns or 0 where it does not count), by lstat(2).
    Object = tuple[str, int, int, int]
    #: (path, (st_mode, st_rdev, st_gid), or None for one that is not there), by lstat(2).
    Node = tuple[str, tuple[int, int, int] | None]
    #: (path, limit, the first *limit* bytes, or None for a file that is not there).
    Text = tuple[str, int, bytes | None]
    #: (path, its names, sorted; no names if it is not a directory).
    Names = tuple[str, tuple[str, ...]]
    #: (path, st_dev, st_ino), by stat(2); zeros for what is not there.
    There = tuple[str, int, int]
    Facts = tuple[
        tuple[Object, ...], tuple[str, ...], tuple[There, ...], tuple[Node, ...], tuple[Text, ...], tuple[Names, ...]
    ]

#: What was changed less than this before we looked, in nanoseconds, may change again without another ctime.
SETTLED = 2_000_000_000
#: A directory in which more names were missing is kept by its ctime, instead of by each of them.
_MISSING_EACH = 8

_MAX_LINKS = 40


class Listener:
    """What has been looked at so far."""

    def __init__(self) -> None:
        self._began = time.time_ns()
        self._unsure = False  # something could not be looked at
        self._objects: dict[str, posix.stat_result | None] = {}
        self._missing: dict[str, set[str]] = {}  # directory → names
        self._whole: set[str] = set()  # directories that were listed
        self._there: dict[str, There] = {}
        self._nodes: dict[str, Node] = {}
        self._texts: dict[str, Text] = {}
        self._names: dict[str, Names] = {}

    def text(self, path: str, limit: int, content: bytes | None) -> None:
        """A small file of the kernel or of the site was read.  At most *limit* bytes of it."""
        self._texts.setdefault(path, (path, limit, content))

    def names(self, path: str, names: list[str]) -> None:
        """A directory of the kernel was listed."""
        self._names.setdefault(path, (path, tuple(names)))

    def node(self, path: str, found: posix.stat_result | None) -> None:
        """A device node was looked for."""
        self._nodes.setdefault(path, (path, None if found is None else (found.st_mode, found.st_rdev, found.st_gid)))

    def there(self, path: str, found: posix.stat_result | None) -> None:
        """A path of the host was looked for, links followed."""
        self._there.setdefault(path, (path, 0, 0) if found is None else (path, found.st_dev, found.st_ino))

    def in_root(self, root: str, path: str, listed: bool = False) -> None:
        """*path* is going to be looked for in the driver root *root* (empty for ``/``), and *listed*."""
        at, links = root, 0
        todo = path.split("/")[::-1]
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                at = at if at == root else at.rpartition("/")[0]
                continue
            here = f"{at}/{name}"
            found = self._object(here)
            if found is None:
                self._missing.setdefault(at or "/", set()).add(name)
                return
            if S_ISLNK(found.st_mode):
                links += 1
                if links > _MAX_LINKS:
                    return
                text = posix.readlink(here)
                at = root if text.startswith("/") else at
                todo += text.split("/")[::-1]
            elif S_ISDIR(found.st_mode):
                at = here
            else:
                return
        if listed:
            self._whole.add(at or "/")

    def _object(self, path: str) -> posix.stat_result | None:
        if path not in self._objects:
            try:
                self._objects[path] = posix.lstat(path)
            except OSError as e:
                self._objects[path] = None
                self._unsure = self._unsure or e.errno not in (ENOENT, ENOTDIR)
        return self._objects[path]

    def facts(self) -> Facts | None:
        """All of it, to compare later (:mod:`gpurun.gpu.nvidia.discovery_cache`); ``None`` when it cannot be used again."""
        if self._unsure:
            return None
        whole = self._whole | {directory for directory, names in self._missing.items() if len(names) > _MISSING_EACH}
        missing = [
            f"{directory.rstrip('/')}/{name}"
            for directory, names in self._missing.items()
            if directory not in whole
            for name in sorted(names)
        ]
        for directory in whole:
            self._object(directory)  # of the host's root nothing has asked yet
        objects: list[Object] = []
        for path, found in self._objects.items():
            if found is None:
                continue
            counts = not S_ISDIR(found.st_mode) or path in whole
            if counts and found.st_ctime_ns > self._began - SETTLED:
                return None
            objects.append((path, found.st_dev, found.st_ino, found.st_ctime_ns if counts else 0))
        rest = (tuple(self._there.values()), tuple(self._nodes.values()), tuple(self._texts.values()))
        return (tuple(objects), tuple(missing), *rest, tuple(self._names.values()))


def first_change(facts: Facts) -> str:
    """The first path of *facts* that is no longer as it was; empty when there is none."""
    objects, missing, there, nodes, texts, names = facts
    path = ""
    try:
        for path, dev, ino, ctime in objects:
            found = posix.lstat(path)
            if found.st_ino != ino or found.st_dev != dev or (ctime and found.st_ctime_ns != ctime):
                return path
        for path in missing:
            if posix.access(path, posix.F_OK, follow_symlinks=False):
                return path
        for path, dev, ino in there:
            found_there = _stat(path)
            if ((found_there.st_dev, found_there.st_ino) if found_there else (0, 0)) != (dev, ino):
                return path
        for path, node in nodes:
            if _node(path) != node:
                return path
        for path, limit, content in texts:
            if _read(path, limit) != content:
                return path
        for path, listed in names:
            if _names(path) != listed:
                return path
    except OSError:
        return path  # gone, or not to be looked at any more
    return ""


def _stat(path: str) -> posix.stat_result | None:
    try:
        return posix.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _node(path: str) -> tuple[int, int, int] | None:
    try:
        found = posix.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mode, found.st_rdev, found.st_gid


def _read(path: str, limit: int) -> bytes | None:
    try:
        # O_NONBLOCK: what was no file when it was looked at may be a FIFO.
        with Fd(posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY | O_CLOEXEC)) as fd:
            return read_fd(fd, limit, path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _names(path: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(posix.listdir(path)))
    except (FileNotFoundError, NotADirectoryError):
        return ()
