"""The program on the node: copied there in one step, tried, and removed once no container is left that was made with it."""

from __future__ import annotations

import glob
import os
import shutil
import stat
import subprocess

from gpurun import log
from gpurun.errors import GpurunError, strerror_lower

#: Where a shim of containerd notes which program its container was made with, below any state directory in /run.
_NOTES = ("/run/*/io.containerd.runtime.v2.task/*/*/runtime", "/run/*/*/io.containerd.runtime.v2.task/*/*/runtime")
#: A program of the node whose SELinux label fits ours: both are called by the container engine.
_ALIKE = ("/usr/bin/runc", "/usr/sbin/runc", "/usr/bin/crun")
_LABEL = "security.selinux"
_TIMEOUT_S = 120.0


def put_program(source: int, path: str) -> bool:
    """Have the file with the descriptor *source* at *path*; whether it was not there just so.  Raises :class:`GpurunError`.

    Whoever runs the old file goes on with it: gpurun reads itself by the descriptor that it was started from.
    """
    with os.fdopen(os.dup(source), "rb") as file:
        file.seek(0)
        data = file.read()
    try:
        if _is(path, data):
            return False
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        made = f"{os.path.dirname(path)}/.{os.path.basename(path)}.gpurun.{os.getpid()}"  # files.remove_strays knows it
        fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o755)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), 0o755)
                _label(file.fileno())
                os.fsync(file.fileno())
            _try(made)
            os.rename(made, path)
        except BaseException:
            os.unlink(made)
            raise
    except OSError as e:
        raise GpurunError(f"{e.filename or path}: {strerror_lower(e.errno or 0)}") from None
    return True


def remove_program(path: str, directory: str) -> tuple[str, ...]:
    """Remove *path*, and *directory* if nothing else is in it; or the containers that still need it, and it stays."""
    users = containers_of(path)
    if users:
        return users
    if os.path.lexists(path):
        os.unlink(path)
    for folder in (os.path.dirname(path), directory):
        try:
            os.rmdir(folder)
        except OSError:  # something that is not gpurun's is in it, or it is gone
            break
    return ()


def containers_of(path: str) -> tuple[str, ...]:
    """The ids of the containers on this node that containerd's shim or CRI-O's conmon ends with the program *path*."""
    found = []
    for note in [name for pattern in _NOTES for name in glob.glob(pattern)]:
        if _text(note).strip() == path:
            found.append(os.path.basename(os.path.dirname(note)))
    for name in glob.glob("/proc/[0-9]*/cmdline"):
        words = _text(name).split("\0")
        if os.path.basename(words[0]) == "conmon" and path in words:
            found.append(words[words.index("-c") + 1] if "-c" in words[:-1] else words[0])
    return tuple(sorted(set(found)))


def _try(path: str) -> None:
    """Run it once: a node whose Python is too old must not get it; a Python that it was not built for compiles it now."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as e:
        why = strerror_lower(e.errno or 0) if isinstance(e, OSError) else str(e)
        raise GpurunError(
            f"this node cannot run gpurun ({why}): it needs Python 3.11 or newer as /usr/bin/python3"
        ) from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise GpurunError(f"this node cannot run gpurun ({said}): it needs Python 3.11 or newer as /usr/bin/python3")


def _is(path: str, data: bytes) -> bool:
    """Whether a file that may be executed, with this content, is at *path*."""
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) != 0o755 or found.st_size != len(data):
            return False
        with open(path, "rb") as file:
            return file.read() == data
    except FileNotFoundError:
        return False


def _label(fd: int) -> None:
    """The SELinux label of the node's own runtime, where the node has labels."""
    alike = next((name for name in _ALIKE if os.path.exists(name)), "")
    try:
        if alike:
            os.setxattr(fd, _LABEL, os.getxattr(alike, _LABEL))
    except OSError as e:
        log.debug(f"{_LABEL} of {alike}: {strerror_lower(e.errno or 0)}")


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:  # gone meanwhile
        return ""


def which_engine() -> str:
    """``containerd`` or ``crio``: the one that this node's kubelet seems to use."""
    for engine, socket in (("containerd", "/run/containerd/containerd.sock"), ("crio", "/run/crio/crio.sock")):
        if os.path.exists(socket):
            return engine
    return "crio" if shutil.which("crio") and not shutil.which("containerd") else "containerd"
