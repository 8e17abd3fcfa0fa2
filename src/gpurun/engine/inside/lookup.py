"""Looking things up inside the container, as its user and without any library of the host: command, home, working directory.

The texts are runc's (which are Go's): docker and podman map them to the exit codes 126 and 127.
"""

from __future__ import annotations

import posix
from _stat import S_ISDIR

from gpurun.errors import GpurunError, StepError, strerror_lower
from gpurun.linux.files import Fd, read_fd
from gpurun.ns.path import UNUSABLE, open_file

_PATH_MAX = 4096


def find_executable(name: str, path: str) -> str:
    """The file to execute for the command *name*, searched in the container's PATH *path*; raises with runc's texts."""
    if "/" in name:
        problem = _problem(name)
        if problem:
            raise GpurunError(f'exec: "{name}": {problem}')
        return name
    if name:
        for directory in path.split(":") if path else ():
            candidate = f"{directory or '.'}/{name}"
            if not _problem(candidate):
                return candidate
    raise GpurunError(f'exec: "{name}": executable file not found in $PATH')


def _problem(path: str) -> str:
    """Why *path* cannot be executed by us, or ""."""
    try:
        found = posix.stat(path)
    except OSError as e:
        return f"stat {path}: {strerror_lower(e.errno)}"
    if S_ISDIR(found.st_mode):
        return "is a directory: permission denied"  # of which Podman knows the second, execve(2)'s own, and gives 126
    if not posix.access(path, posix.X_OK, effective_ids=True) or not found.st_mode & 0o111:
        return "permission denied"
    return ""


def home_directory(root_fd: int, proc_fd: int, uid: int) -> str:
    """The home directory of *uid* by the container's /etc/passwd (at most 1 MiB of it), ``/`` if it has none that can be
    the path of a directory.

    Raises :class:`StepError` when that cannot be found out.
    """
    try:
        fd = open_file(root_fd, "/etc/passwd", proc_fd=proc_fd)
    except OSError as e:
        if e.errno in UNUSABLE:
            return "/"  # an image need not have one
        raise StepError("read", "/etc/passwd of the container", e.errno) from None
    if fd < 0:
        return "/"
    with Fd(fd):
        data = read_fd(fd)
    wanted = str(uid).encode()
    for line in data.split(b"\n"):
        fields = line.split(b":")
        if len(fields) >= 6 and fields[2] == wanted:
            home = fields[5] if len(fields[5]) < _PATH_MAX and b"\0" not in fields[5] else b""
            return home.decode("utf-8", "surrogateescape") or "/"
    return "/"


def check_cwd() -> None:
    """Refuse a working directory outside the container's root: the way out of CVE-2024-21626.

    Raises :class:`GpurunError`.
    """
    try:
        cwd = posix.getcwd()
    except OSError:
        cwd = ""
    if not cwd.startswith("/"):
        raise GpurunError(
            "current working directory is outside of container mount namespace root -- possible container breakout detected"
        )
