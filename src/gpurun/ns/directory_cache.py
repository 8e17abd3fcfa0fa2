"""Many files in few directories of a rootfs: each directory is resolved once and held, and what is made is made under it.

A device's edits put some hundred names into a dozen directories.  Resolving each name from the root would be most of the
system calls of such a container; under the descriptor of its directory a name is one step, which follows no link.
"""

from __future__ import annotations

import posix
from _stat import S_IFREG, S_ISLNK
from errno import EEXIST, EROFS

from gpurun.errors import GpurunError, Step, StepError
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import O_DIRECTORY, O_NOFOLLOW, O_PATH
from gpurun.ns.path import UNUSABLE, join, make_dir, make_dirs, make_target, open_in_root, path_in_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpurun.ns.journal import Journal


#: What making a name says of what the image has there, or of its file system.
_OF_THE_IMAGE = (*UNUSABLE, EEXIST, EROFS)


class DirectoryCache:
    """The directories of the rootfs *root_fd* that have been asked for, open until :meth:`close`.

    What is made is noted in *journal*, if there is one.  Whoever covers a directory (by a mount, an overlay) is to call
    :meth:`renew` before.  *check* gets the descriptor and the path of all that is resolved, and raises for what is no place.
    """

    def __init__(
        self, root_fd: int, journal: Journal | None = None, check: Callable[[int, str], None] | None = None
    ) -> None:
        self.root_fd = root_fd
        self.journal = journal
        self._check = check
        self._directories: dict[str, tuple[int, str]] = {}
        self._asked: set[str] = set()  # of them, those that something is put into; the rest lead there
        self._made: set[str] = set()  # of them, those that we have made

    def directory(self, path: str) -> tuple[int, str]:
        """The directory *path*, made where it is missing: (its descriptor, ours to close; its path as journals have it).

        Without a journal that path is not read.
        """
        found = self._hold(path)
        if path not in self._asked:
            if self._check is not None:
                self._check(found[0], path)
            self._asked.add(path)
        return found

    def make_all(self, wanted: Iterable[tuple[str, str | None]]) -> None:
        """Make what is missing of *wanted*, (path, text of a link; ``None``: an empty file), all noted in one write before.

        What the image itself has in the way (a read-only file system, a link in its place) is left to who asks for it next:
        that makes room, or tells it.  Any other error (a full disk, no more memory) raises :class:`StepError`.
        """
        missing: list[tuple[int, str, str | None]] = []
        notes: list[tuple[str, str, bytes]] = []
        for path, text in wanted:
            directory, _, name = path.rpartition("/")
            try:
                parent, parent_path = self.directory(directory or "/")
            except OSError as e:
                if e.errno not in _OF_THE_IMAGE:
                    raise StepError("make the directory of", path, e.errno) from None
                continue
            if name in ("", ".", "..") or posix.access(name, posix.F_OK, dir_fd=parent, follow_symlinks=False):
                continue
            missing.append((parent, path, text))
            kind, rest = ("file", b"") if text is None else ("link", text.encode("utf-8", "surrogateescape"))
            notes.append((kind, join(parent_path, name), rest))
        stamps = [0] * len(notes) if self.journal is None else self.journal.note_all(notes)
        for (parent, path, text), stamp in zip(missing, stamps, strict=True):
            name = path.rpartition("/")[2]
            try:
                if text is None:
                    posix.mknod(name, S_IFREG | 0o644, dir_fd=parent)
                else:
                    posix.symlink(text, name, dir_fd=parent)
            except OSError as e:
                if self.journal is not None:
                    self.journal.cancel(stamp)
                if e.errno not in _OF_THE_IMAGE:
                    raise StepError("mknod(2)" if text is None else "symlink(2)", path, e.errno) from None

    def file(self, path: str) -> int:
        """An O_PATH descriptor, the caller's to close, of the mount point *path*: an empty file where it is missing.

        As with :meth:`point` what is there is taken as it is.
        """
        directory, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            return self.point(path, False)
        parent, _ = self.directory(directory or "/")
        try:
            fd = posix.open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=parent)
        except FileNotFoundError:
            return self._make_file(path)
        if not S_ISLNK(posix.fstat(fd).st_mode):
            return fd
        posix.close(fd)
        return self.point(path, False)

    def point(self, path: str, directory: bool) -> int:
        """An O_PATH descriptor, the caller's to close, of the mount point *path*, resolved from the root."""
        return self._checked(make_target(self.root_fd, path, directory, self.journal, check=self._check), path)

    def made(self, path: str) -> int:
        """An O_PATH descriptor, the caller's to close, of the directory *path*, resolved from the root."""
        return self._checked(make_dirs(self.root_fd, path, self.journal, check=self._check), path)

    def look(self, path: str) -> posix.stat_result:
        """What is at *path*, links followed inside the rootfs."""
        directory, _, name = path.rpartition("/")
        held = self._directories.get(directory or "/")
        if held is not None and name not in ("", ".", ".."):
            found = posix.stat(name, dir_fd=held[0], follow_symlinks=False)
            if not S_ISLNK(found.st_mode):
                return found
        with Fd(open_in_root(self.root_fd, path)) as fd:
            return posix.fstat(fd)

    def note(self, kind: str, path: str, rest: bytes = b"") -> tuple[int, str]:
        """Write down that *path* is about to be made; returns (descriptor of its directory, its name)."""
        directory, _, name = path.rpartition("/")
        parent, parent_path = self.directory(directory or "/")
        if self.journal is not None:
            self.journal.note(kind, join(parent_path, name), rest)
        return parent, name

    def cancel(self) -> None:
        """Take the last note back."""
        if self.journal is not None:
            self.journal.cancel()

    def renew(self) -> None:
        """A last look at the directories that are held, then let go of them: the next question resolves them anew.

        Raises :class:`StepError` where a process in the container would find something else at such a path.
        """
        for path in self._asked:
            held = self._directories[path][0]
            with Step("find again", path):
                fd = open_in_root(self.root_fd, path)
            same = _identity(fd) == _identity(held)
            posix.close(fd)
            if not same:
                raise StepError("find again", path, EEXIST)
        self.close()

    def close(self) -> None:
        """Let go of everything, without a look."""
        held = [fd for fd, _ in self._directories.values()]
        self._directories.clear()
        self._asked.clear()
        self._made.clear()
        for fd in held:
            posix.close(fd)

    def _hold(self, path: str) -> tuple[int, str]:
        found = self._directories.get(path)
        if found is None:
            found = self._directories[path] = self._step(path) or self._resolve(path)
        return found

    def _step(self, path: str) -> tuple[int, str] | None:
        """As :meth:`directory`, in one step from the directory above; ``None`` where that is no way: a link, ``..``."""
        if path == "/":
            return posix.open(".", O_PATH | O_DIRECTORY | O_CLOEXEC, dir_fd=self.root_fd), ""
        above, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            return None
        parent, parent_path = self._hold(above or "/")
        flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
        try:
            missing = above in self._made  # there is nothing in it yet
            if not missing:
                try:
                    fd = posix.open(name, flags, dir_fd=parent)
                except FileNotFoundError:
                    missing = True
            if missing:
                make_dir((parent, parent_path), name, self.journal)
                fd = posix.open(name, flags, dir_fd=parent)
                self._made.add(path)
        except NotADirectoryError:
            return None
        except OSError as e:
            raise OSError(e.errno, e.strerror, path) from None
        return fd, join(parent_path, name)

    def _checked(self, fd: int, path: str) -> int:
        """*fd*, to which *path* has been resolved; closed where the check refuses it."""
        try:
            if self._check is not None:
                self._check(fd, path)
        except GpurunError:
            posix.close(fd)
            raise
        return fd

    def _resolve(self, path: str) -> tuple[int, str]:
        fd = self.made(path)
        try:
            return fd, "" if self.journal is None else path_in_root(self.root_fd, fd, "").rstrip("/")
        except OSError:
            posix.close(fd)
            raise

    def _make_file(self, path: str) -> int:
        parent, name = self.note("file", path)
        try:
            posix.mknod(name, S_IFREG | 0o644, dir_fd=parent)
        except OSError as e:
            self.cancel()
            if e.errno != EEXIST:  # another container that shares this rootfs was faster: what is there is looked at
                raise OSError(e.errno, e.strerror, path) from None
        return posix.open(name, O_PATH | O_NOFOLLOW | O_CLOEXEC, dir_fd=parent)


def _identity(fd: int) -> tuple[int, int]:
    found = posix.fstat(fd)
    return found.st_dev, found.st_ino
