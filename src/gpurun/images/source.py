"""What SOURCE means, in the words of skopeo(1), and whether it can be given to skopeo: an image is not trusted.

skopeo and umoci follow links of a layout's directory and open what is there, so links and special files are refused first.
Reference: containers-transports(5); image-spec image-layout.md.
"""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile

from gpurun.errors import GpurunError, clean
from gpurun.record import Record

#: skopeo's transports whose first part is a path of this host.
LOCAL = ("oci", "dir", "oci-archive", "docker-archive", "tarball")
_REMOTE = ("docker", "docker-daemon", "containers-storage", "ostree", "sif", "atomic")
_MAX_FILES = 100_000
_LINE = 4096  # characters of tar's output that are looked at: the rest of a line is a name
#: Address space for tar(1), in bytes: it keeps a member's extended header in memory, of whatever size that is.
_TAR_MEMORY = 1 << 30


class Source(Record):
    """*transport* is skopeo's, *path* a path of this host (empty for others), *rest* what follows with its separator.

    With the transport "" *path* is a directory that is a root itself.
    """

    transport: str
    path: str
    rest: str = ""


def read_source(text: str, tag: str) -> Source:
    """What *text* names: a path of this host, else ``TRANSPORT:…`` as skopeo takes it; *tag* chooses among several images.

    Raises :class:`GpurunError` for what is not there, or has links or special files in it.
    """
    transport, colon, rest = text.partition(":")
    if not os.path.lexists(text) and colon and transport in (*LOCAL, *_REMOTE):
        if tag:
            raise GpurunError(f"--tag is for images in a directory or an archive: write it into {clean(text)}")
        if transport not in LOCAL:
            return Source(transport, "", f":{rest}")
        path, colon, reference = rest.partition(":")
        source = Source(transport, os.path.abspath(path), colon + reference)
    else:
        source = _of_path(os.path.abspath(text), f":{tag}" if tag else "")
    if source.transport in ("oci", "dir"):
        _check_directory(source.path)
    elif source.transport:
        _check_archive(source)
    return source


def _of_path(path: str, rest: str) -> Source:
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            if os.path.lexists(f"{path}/oci-layout"):
                return Source("oci", path, rest)
            if os.path.lexists(f"{path}/manifest.json") and os.path.lexists(f"{path}/version"):
                return Source("dir", path)
            return Source("", os.path.realpath(path))
    except OSError as e:
        raise GpurunError(f"{clean(path)}: {(e.strerror or '').lower()}") from None
    names, _ = _members(path)
    # Archives of newer engines have both: what docker-archive reads has the names of the images.
    for name, transport in (("manifest.json", "docker-archive"), ("oci-layout", "oci-archive")):
        if name in names:
            return Source(transport, path, rest)
    return Source("tarball", path)


def _check_directory(path: str) -> None:
    """Raise :class:`GpurunError` unless all that is below the directory is directories and regular files."""
    count, left = 0, [path]
    try:
        while left:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False):
                        raise GpurunError(f"{clean(entry.path)} is a link or a special file, which no image's directory has")
                    if count > _MAX_FILES:
                        raise GpurunError(f"{clean(path)}: no image's directory has more than {_MAX_FILES} files")
    except OSError as e:
        raise GpurunError(f"{clean(path)}: {(e.strerror or '').lower()}") from None


def _check_archive(source: Source) -> None:
    if source.transport != "oci-archive":
        _check_regular(source.path)  # skopeo reads members of the others by itself, and unpacks none
        return
    _, kinds = _members(source.path)
    if kinds - {"-", "d"}:
        raise GpurunError(f"{clean(source.path)}: there are links or special files in it, which no archive of a layout has")


def _check_regular(path: str) -> None:
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except OSError as e:
        raise GpurunError(f"{clean(path)}: {(e.strerror or '').lower()}") from None
    if not regular:
        raise GpurunError(f"{clean(path)} is not a regular file")


def prlimit_command(memory: int, file_size: int = 0) -> list[str]:
    """The words before a command that gives it limits of address space and, unless 0, of the size of a file, in bytes.

    sh(1) sets them before the program runs; what threads of ours do meanwhile does not matter.
    """
    limits = [f"ulimit -v {memory >> 10}", *([f"ulimit -f {-(-file_size // 512)}"] if file_size else [])]
    return ["/bin/sh", "-c", f'{" && ".join(limits)} && exec "$0" "$@"']


def _members(path: str) -> tuple[set[str], set[str]]:
    """(which of the files of layouts and of `docker save` are there, the kinds of all members as ls(1) writes them).

    tar(1) lists the archive, so that what an archive says takes no memory here.  Raises :class:`GpurunError`.
    """
    _check_regular(path)
    wanted = {"manifest.json", "oci-layout"}
    names: set[str] = set()
    kinds: set[str] = set()
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    words = [
        *prlimit_command(_TAR_MEMORY),
        "tar",
        "--list",
        "--verbose",
        "--numeric-owner",
        "--quoting-style=escape",
        "--file",
        path,
    ]
    with tempfile.TemporaryFile() as errors:
        try:
            tar = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=env)
        except OSError as e:
            raise GpurunError(f"tar cannot be run: {(e.strerror or '').lower()}") from None
        with tar:
            assert tar.stdout is not None
            at_start = True
            while line := tar.stdout.readline(_LINE):
                if at_start:
                    kinds.add(chr(line[0]))
                    name = line.rstrip(b"\n").rpartition(b" ")[2].decode("utf-8", "replace").removeprefix("./")
                    names |= {name} & wanted
                at_start = line.endswith(b"\n")
        errors.seek(0)
        said = errors.read(_LINE).decode("utf-8", "replace")
    if tar.returncode:
        why = clean((said.strip().splitlines() or [f"status {tar.returncode}"])[0])
        raise GpurunError(f"{clean(path)}: is neither a directory nor an archive that tar can read: {why}")
    return names, kinds
