"""An image into a directory: skopeo(1) copies it, and umoci(1) unpacks its layers.

Both are programs of others that read what an image says, and they are run with limits: of memory, of the size of a file, and
of what the file system may lose meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from errno import ENOSPC

from gpurun.errors import ConfigError, GpurunError, clean, no_room
from gpurun.images.source import Source, prlimit_command
from gpurun.linux.files import read_file
from gpurun.oci.reader import as_object, get_array, get_object, get_string, parse_json
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, BinaryIO

MAX_SIZE = 64 << 30
_MAX_FILES = 4_000_000
_MAX_DOCUMENT = 4 << 20  # bytes
_MEMORY = 4 << 30  # bytes of address space, of which a program in Go uses a part
#: Threads take address space as well, and a machine may have hundreds of processors.
_THREADS = 8
#: Signals that end gpurun, as exceptions.
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
_LOOK_S = 0.2
_SAID = 1 << 16  # bytes
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The image in the working directory, in the words of both programs.
_IMAGE = "image:gpurun"


class Limits(Record):
    """*size*: bytes that the file system may lose while an image is copied, and while it is unpacked."""

    size: int = MAX_SIZE


def unpack(
    source: Source, scratch: str, root: str, architecture: str, limits: Limits, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Make the directory *root* of the image that *source* names; its configuration (image-spec config.md).

    *scratch* is an empty directory on the same file system.  *environ* is the environment of the programs: skopeo looks for
    credentials and proxies there.  Raises :class:`GpurunError`.
    """
    programs = {name: shutil.which(name, path=environ.get("PATH") or _PATH) or "" for name in ("skopeo", "umoci")}
    missing = [name for name, path in programs.items() if not path]
    if missing:
        raise GpurunError(
            f"an image is copied by skopeo and unpacked by umoci, and there is no {' and no '.join(missing)} here "
            f"(`apt-get install {' '.join(missing)}`)"
        )
    name = f"{source.transport}{source.rest}"
    if source.path:
        # By a name of ours: theirs may have a colon, which ends it for skopeo.
        os.symlink(source.path, f"{scratch}/source")
        name = f"{source.transport}:source{source.rest}"
    where = clean(source.path or name)
    words = ["--tmpdir", scratch, "--override-os", "linux", "--override-arch", architecture]
    # Layers of other sources that are not compressed would be called compressed all the same.
    as_they_are = ["--dest-oci-accept-uncompressed-layers"] if source.transport in ("oci", "oci-archive") else []
    copy = ["copy", "--quiet", *as_they_are, "--", name, f"oci:{_IMAGE}"]
    _run([programs["skopeo"], *words, *copy], scratch, limits, environ, where)
    image = _configuration(f"{scratch}/image")
    rootless = ["--rootless"] if os.geteuid() else []
    _run([programs["umoci"], "raw", "unpack", *rootless, "--image", _IMAGE, root], scratch, limits, environ, where)
    return image


def _configuration(layout: str) -> dict[str, Any]:
    """The configuration of the one image of a layout that skopeo has written."""
    index = _document(f"{layout}/index.json")
    entries = get_array(index, "manifests", "", as_object)
    if len(entries) != 1:
        raise ConfigError("index.json", f"has {len(entries)} images, not one")
    manifest = _document(_blob(layout, entries[0]))
    return _document(_blob(layout, get_object(manifest, "config", "") or {}))


def _blob(layout: str, descriptor: dict[str, Any]) -> str:
    algorithm, _, value = get_string(descriptor, "digest", "").partition(":")
    if not (algorithm.isalnum() and value.isalnum() and value.isascii()):
        raise ConfigError("digest", f'"{clean(value)}" is not a digest')
    return f"{layout}/blobs/{algorithm}/{value}"


def _document(path: str) -> dict[str, Any]:
    try:
        data = read_file(path, _MAX_DOCUMENT + 1)
    except OSError as e:
        raise GpurunError(f"{clean(path)}: {(e.strerror or '').lower()}") from None
    file_name = path.rpartition("/")[2]
    if len(data) > _MAX_DOCUMENT:
        raise ConfigError(file_name, f"is larger than {_MAX_DOCUMENT >> 20} MiB")
    return as_object(parse_json(data, file_name), file_name)


def _run(words: Sequence[str], directory: str, limits: Limits, environ: Mapping[str, str], image: str) -> None:
    """Run a program in *directory* and wait for it; raises :class:`GpurunError` with its last line."""
    name = os.path.basename(words[0])
    before = os.statvfs(directory)
    with _memory() as output:
        env = {"GOMAXPROCS": str(min(os.cpu_count() or 1, _THREADS)), "MALLOC_ARENA_MAX": "2", **environ}
        child: subprocess.Popen[bytes] | None = None
        try:
            held = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # an end within Popen would leave the child behind
            try:
                child = subprocess.Popen(
                    [*prlimit_command(_MEMORY, limits.size), *words],
                    cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                )  # fmt: skip
            except OSError as e:
                raise GpurunError(f"{name} cannot be run: {(e.strerror or '').lower()}") from None
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
            while True:
                ended = _wait(child)
                after = os.statvfs(directory)
                if (before.f_bfree - after.f_bfree) * after.f_frsize > limits.size:
                    raise GpurunError(f"{image}: the image takes more than {limits.size} bytes of disk (see --max-size)")
                if before.f_ffree - after.f_ffree > _MAX_FILES:
                    raise GpurunError(f"{image}: the image has more than {_MAX_FILES} files")
                if ended:
                    break
        finally:
            if child is not None and child.poll() is None:
                child.kill()
                child.wait()
        said = os.pread(output.fileno(), _SAID, 0).rstrip(b"\0")
    if child.returncode:
        lines = said.decode("utf-8", "replace").strip().splitlines() or [f"status {child.returncode}"]
        reason = _reason(lines)
        which = " (--tag says which)" if "more than one image" in reason or "choose an image" in reason else ""
        full = f": {no_room(ENOSPC, directory.rpartition('/')[0])}" if os.strerror(ENOSPC).lower() in reason else ""
        raise GpurunError(f"{image}: {name}: {clean(reason, 500)}{which}{full}")


def _memory() -> BinaryIO:
    """A file for what a program says: on no disk, which may be full, and no larger than what is read of it."""
    fd = os.memfd_create("said", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    file = open(fd, "r+b", buffering=0)
    file.truncate(_SAID)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return file


def _wait(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(_LOOK_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _reason(lines: Sequence[str]) -> str:
    """What a program in Go says for its end: a line of logrus, or the first line where its memory ran out."""
    line = next((one for one in lines if one.startswith(("fatal error:", "runtime:"))), lines[-1]).strip(" \u2a2f")
    _, quoted, message = line.rpartition('level=fatal msg="')
    return message.removesuffix('"').replace('\\"', '"').replace("\\\\", "\\") if quoted else line
