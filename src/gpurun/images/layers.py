"""Layers of an image, one over the other, into a directory (image-spec layer.md): whiteouts, links, owners, times.

An archive is hostile.  Every path is resolved by openat2(2) with the directory as its root, so no link of a layer leads out
of it; what there is of a name is taken away before something else is made, never written through; devices, absolute names
with ``..`` and more bytes or files than there may be are refused.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import tarfile
from typing import IO

from gpurun.errors import GpurunError, shown
from gpurun.images.compression import DAMAGED, decompressed
from gpurun.linux.fs import O_DIRECTORY, O_NOFOLLOW, O_PATH, RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, openat2
from gpurun.record import Record

_BROKEN: tuple[type[Exception], ...] = (tarfile.TarError, *DAMAGED)
_UNREADABLE: tuple[type[Exception], ...] = (OSError, *DAMAGED)
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_RESOLVE = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
_XATTR = "SCHILY.xattr."
#: The extended attributes that an image may bring: what users set, and the capabilities of files.
_XATTRS = ("user.", "security.capability")
_MAX_PATH, _MAX_NAME = 4096, 255
_MAX_DEPTH = 200  # directories within directories: as many are walked through, one call in the other


class Limits(Record):
    """How much an image may come to: *bytes* of all files together, *files* of any kind."""

    bytes: int = 64 << 30
    files: int = 4_000_000


class Digest(io.RawIOBase):
    """A stream that is read once, from beginning to end, and its digest."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._made = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._made.update(data)
        return data

    def diff_id(self, most: int) -> str:
        """The digest of all, as ``sha256:…``; what is not read yet, *most* bytes and no more, is read."""
        while most > 0 and (piece := self.read(1 << 20)):
            most -= len(piece)
        return f"sha256:{self._made.hexdigest()}"


def diff_id_of(layer: str) -> str:
    """The digest of the archive in the file *layer* without its compression.  Raises :class:`GpurunError`."""
    where = os.path.basename(layer)
    try:
        with open(layer, "rb") as opened:
            return Digest(decompressed(opened, where)).diff_id(Limits().bytes)
    except _UNREADABLE as e:
        raise GpurunError(f"{where}: cannot be read: {e}") from None


class Unpacker:
    """Puts layers into the directory *root*, which is empty at first and nobody else's to write to.

    Without root's privileges everything belongs to the caller.  *skipped* counts device nodes of /dev, which a container has
    of its runtime.
    """

    def __init__(self, root: str, limits: Limits) -> None:
        self._root = os.open(root, os.O_RDONLY | O_DIRECTORY | os.O_CLOEXEC)
        self._limits = limits
        self._bytes = self._files = 0
        self._owned = os.geteuid() == 0
        self._layer: set[str] = set()  # what the layer in hand has made, as it is called there
        self._times: dict[str, int] = {}  # of directories, set in the end
        self.skipped = 0

    def close(self) -> None:
        os.close(self._root)

    def move(self, root: str) -> None:
        """Put what follows into the directory *root*, which looks as the one until now does."""
        moved = os.open(root, os.O_RDONLY | O_DIRECTORY | os.O_CLOEXEC)
        os.close(self._root)
        self._root = moved

    def add(self, layer: str, diff_id: str = "") -> None:
        """Put the archive in the file *layer* over what is there; raises :class:`GpurunError`.

        *diff_id* is the digest that the archive must have without its compression (image-spec config.md, "Layer DiffID");
        what has another one is refused when all of it has been read.
        """
        self._layer, self._times = set(), {}
        where = os.path.basename(layer)
        with open(layer, "rb") as opened:
            try:
                stream = Digest(decompressed(opened, where))
                with tarfile.open(fileobj=stream, mode="r|", errorlevel=2) as archive:
                    for member in archive:
                        self._count(member, where)
                        self._member(archive, member, where)
                found = stream.diff_id(self._limits.bytes)  # to the end, where compressed streams have their check
                if diff_id and found != diff_id:
                    raise GpurunError(f"{where}: the content is not what the image's configuration says (rootfs.diff_ids)")
            except _BROKEN as e:
                raise GpurunError(f"{where}: is no whole tar archive: {e}") from None
            except OSError as e:
                if isinstance(e.filename, str):
                    raise GpurunError(f"{where}: {shown(e.filename)}: {(e.strerror or str(e)).lower()}") from None
                raise GpurunError(f"{where}: cannot be read: {e}") from None
        for path, mtime in sorted(self._times.items(), reverse=True):
            self._set_times(path, mtime)

    def _count(self, member: tarfile.TarInfo, where: str) -> None:
        self._files += 1
        self._bytes += max(member.size, 0)
        if self._bytes > self._limits.bytes:
            raise GpurunError(f"{where}: the image is larger than {self._limits.bytes >> 20} MiB: --max-size allows more")
        if self._files > self._limits.files:
            raise GpurunError(f"{where}: the image has more than {self._limits.files} files")

    def _member(self, archive: tarfile.TarFile, member: tarfile.TarInfo, where: str) -> None:
        path = _clean(member.name, where)
        parent, _, name = path.rpartition("/")
        if not name:
            if member.isdir():
                self._dress(self._root, member)
            return
        kept = self._directory(parent, member.name, where)
        try:
            if name.startswith(_WHITEOUT):
                self._whiteout(kept, parent, name, where)
            else:
                self._make(archive, member, kept, path, name, where)
        finally:
            os.close(kept)

    def _directory(self, path: str, member: str, where: str) -> int:
        """The directory *path*, made where it is missing, with the links on the way followed inside of the root."""
        try:
            return openat2(self._root, path or ".", os.O_RDONLY | O_DIRECTORY, _RESOLVE)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise GpurunError(
                f"{where}: {shown(member)}: its directory cannot be opened: {(e.strerror or '').lower()}"
            ) from None
        above, _, name = path.rpartition("/")
        parent = self._directory(above, member, where)
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            raise GpurunError(f"{where}: {shown(member)}: a link in its path leads nowhere") from None
        finally:
            os.close(parent)
        return openat2(self._root, path, os.O_RDONLY | O_DIRECTORY, _RESOLVE)

    def _whiteout(self, parent_fd: int, parent: str, name: str, where: str) -> None:
        if name == _OPAQUE:
            for below in os.listdir(parent_fd):
                if f"{parent}/{below}".lstrip("/") not in self._layer:
                    _remove(parent_fd, below)
            return
        hidden = name.removeprefix(_WHITEOUT)
        if hidden in ("", ".", "..") or hidden.startswith(_WHITEOUT):
            raise GpurunError(f"{where}: {shown(name)} is no whiteout of a file")
        if f"{parent}/{hidden}".lstrip("/") not in self._layer:
            _remove(parent_fd, hidden)

    def _make(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, parent: int, path: str, name: str, where: str
    ) -> None:
        if member.ischr() or member.isblk():
            if not path.startswith("dev/"):
                raise GpurunError(f"{where}: {shown(member.name)} is a device node, and nothing of an image makes any")
            self.skipped += 1
            return
        self._note(path)
        if member.isdir():
            self._make_directory(member, parent, path, name)
            return
        _remove(parent, name)
        if member.isreg():
            source = archive.extractfile(member)
            assert source is not None
            self._make_file(source, member, parent, name, where)
        elif member.issym():
            os.symlink(member.linkname, name, dir_fd=parent)
            if self._owned:
                os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
        elif member.islnk():
            self._link(member, parent, name, where)
        elif member.isfifo():
            os.mkfifo(name, 0o600, dir_fd=parent)
            if self._owned:
                os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
            os.chmod(name, member.mode & 0o7777, dir_fd=parent)
        else:
            raise GpurunError(f"{where}: {shown(member.name)} is of a kind ({member.type!r}) that no image has")

    def _note(self, path: str) -> None:
        while path and path not in self._layer:
            self._layer.add(path)
            path = path.rpartition("/")[0]

    def _make_directory(self, member: tarfile.TarInfo, parent: int, path: str, name: str) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                _remove(parent, name)
                os.mkdir(name, 0o700, dir_fd=parent)
        fd = os.open(name, os.O_RDONLY | O_DIRECTORY | O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            self._dress(fd, member)
        finally:
            os.close(fd)
        self._times[path] = int(member.mtime)

    def _make_file(self, source: IO[bytes], member: tarfile.TarInfo, parent: int, name: str, where: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            left = member.size
            while left and (piece := source.read(min(left, 1 << 20))):
                left -= len(piece)
                while piece:
                    piece = piece[os.write(fd, piece) :]
            if left:
                raise GpurunError(f"{where}: {shown(member.name)} is cut off")
            self._dress(fd, member)
            os.utime(fd, (int(member.mtime), int(member.mtime)))
        finally:
            os.close(fd)

    def _dress(self, fd: int, member: tarfile.TarInfo) -> None:
        """Owner, mode and attributes; the mode after the owner, which takes set-user-ID bits away."""
        if self._owned:
            os.fchown(fd, member.uid, member.gid)
        os.fchmod(fd, member.mode & 0o7777)
        for key, value in member.pax_headers.items():
            name = key.removeprefix(_XATTR)
            if name != key and name.startswith(_XATTRS) and (self._owned or name.startswith("user.")):
                try:
                    os.setxattr(fd, name, value.encode("utf-8", "surrogateescape"))
                except OSError:
                    continue  # a file system without them: the file is there all the same

    def _link(self, member: tarfile.TarInfo, parent: int, name: str, where: str) -> None:
        target = _clean(member.linkname, where)
        above, _, last = target.rpartition("/")
        try:
            directory = openat2(self._root, above or ".", O_PATH | O_DIRECTORY, _RESOLVE)
        except OSError:
            directory = -1
        try:
            if directory < 0 or not last:
                raise FileNotFoundError
            if stat.S_ISDIR(os.stat(last, dir_fd=directory, follow_symlinks=False).st_mode):
                raise IsADirectoryError
            os.link(last, name, src_dir_fd=directory, dst_dir_fd=parent, follow_symlinks=False)
        except OSError:
            raise GpurunError(
                f"{where}: {shown(member.name)} is a hard link to {shown(member.linkname)}, which is no file of the image"
            ) from None
        finally:
            if directory >= 0:
                os.close(directory)

    def _set_times(self, path: str, mtime: int) -> None:
        try:
            fd = openat2(self._root, path, os.O_RDONLY | O_DIRECTORY | O_NOFOLLOW, _RESOLVE)
        except OSError:
            return  # taken away again
        try:
            os.utime(fd, (mtime, mtime))
        finally:
            os.close(fd)


def _clean(name: str, where: str) -> str:
    """*name* of an archive as a relative path; ``..`` and what no file system takes is refused."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise GpurunError(f'{where}: "{shown(name)}" leads out of the image')
    if len(os.fsencode(name)) > _MAX_PATH or any(len(os.fsencode(part)) > _MAX_NAME for part in parts):
        raise GpurunError(f'{where}: the name "{shown(name, 60)}" is too long')
    if len(parts) > _MAX_DEPTH:
        raise GpurunError(f'{where}: "{shown(name, 60)}" is more than {_MAX_DEPTH} directories deep')
    return "/".join(parts)


def _remove(parent: int, name: str) -> None:
    """Take away whatever is called *name* in the directory; links are not followed."""
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
