"""NVIDIA's programs: on the node's PATH, or in the root of a driver that a container or an administrator has put elsewhere.

gpurun did not install what is in a driver's root, and root executes it.  So a program is looked for inside that root (no
link leads out of it), and only one that root owns and no other user may write is taken.  It runs with the driver's root as
its own, so that it finds the libraries of its driver.  A directory that has only the driver's files, without the loader
that a program needs, is no root: there the node's loader is used, with the directories of the driver's libraries.

A driver that hangs holds such a program in the kernel, maybe for good: it is killed when its time is over, and not waited
for.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import threading
from contextlib import suppress

from gpurun.errors import GpurunError
from gpurun.formats.elf import interpreter
from gpurun.gpu.nvidia.host.libraries import library_dirs, open_driver_root
from gpurun.linux.files import Fd
from gpurun.linux.fs import O_DIRECTORY, O_PATH, RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, openat2
from gpurun.ns.path import UNUSABLE, open_file, open_in_root
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Where a driver's root has its programs: the usual directories, as NVIDIA's own components look for them.
_DIRECTORIES = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/local/sbin", "/opt/bin")
#: Libraries by which a directory is known to be one of the driver's.
_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
_GRACE_S = 0.5  # after SIGKILL; a process that the driver holds in the kernel does not die at all
#: Programs that were killed and are still there.
_left: list[subprocess.Popen[str]] = []
_left_lock = threading.Lock()


class Program(Record):
    """How a program of the driver is called: *words*, and the directory *root* that it has as its root (empty: ours)."""

    words: tuple[str, ...]
    root: str = ""


def find_driver_program(name: str, driver_root: str = "", path: str = "", root: str = "") -> Program | None:
    """The program *name* of the driver below *driver_root*, or in the directories *path* of the node (default: PATH).

    In a pod *root* is where the node's root is mounted; *driver_root* and *path* are the node's own.  None where there is
    none.  Raises :class:`GpurunError` for a program in the driver's root that root must not execute.
    """
    if driver_root.rstrip("/"):
        return _of_driver_root(name, driver_root.rstrip("/"), root)
    directories = (path or os.environ.get("PATH", os.defpath)).split(":")
    found = shutil.which(name, path=":".join([root + directory for directory in directories]))
    if found is None:
        return None
    return Program(("chroot", root, found[len(root) :])) if root else Program((found,))


def call(
    words: Sequence[str], timeout_s: float, text: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What a program of the driver says that is called with *words*, with *text* as its input and the environment *env*.

    It and what it has started are killed after *timeout_s* seconds.  What the kernel holds in the driver is left behind, and
    no other is called as long as it is there.  Raises OSError where it cannot be started, and
    :class:`subprocess.SubprocessError` where it does not end in time, or one before it has not.
    """
    with _left_lock:
        _left[:] = [process for process in _left if process.poll() is None]
        if _left:
            raise subprocess.SubprocessError(
                f"the NVIDIA driver still holds process {_left[0].pid}, which was called before"
            )
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True, errors="replace",
        start_new_session=True, cwd="/",
    )  # fmt: skip
    try:
        said, complained = process.communicate(text, timeout_s)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            with _left_lock:
                _left.append(process)
        raise
    return subprocess.CompletedProcess(words, process.returncode, said, complained)


def _of_driver_root(name: str, driver_root: str, root: str) -> Program | None:
    whole = root + driver_root
    try:
        opened = os.open(whole, os.O_RDONLY | O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    with Fd(opened) as fd:
        # The real path: a link in it would mean another place once a root is entered.
        whole = os.readlink(f"/proc/self/fd/{fd}")
        for directory in _DIRECTORIES:
            try:
                program = open_file(fd, f"{directory}/{name}")
            except OSError as e:
                if e.errno not in UNUSABLE:
                    raise GpurunError(f"{whole}{directory}/{name}: {e.strerror}") from None
                continue
            if program < 0:
                continue
            with Fd(program):
                place = os.readlink(f"/proc/self/fd/{program}").removeprefix(whole)
                _check(program, fd, place, whole)
                loader = interpreter(program)
            if not loader or _is_there(fd, loader):
                return Program(("chroot", whole, place), whole)
            libraries = f"LD_LIBRARY_PATH={':'.join([driver_root + one for one in _library_dirs(whole)])}"
            words = ("env", libraries, driver_root + place)
            return Program(("chroot", root, *words) if root else words)
    return None


def _check(program: int, root: int, place: str, whole: str) -> None:
    """Raise :class:`GpurunError` where another user than root could have put there what root is to execute."""
    with Fd(open_in_root(root, os.path.dirname(place) or "/", O_PATH | O_DIRECTORY)) as directory:
        for fd, what in ((program, place), (directory, os.path.dirname(place))):
            found = os.fstat(fd)
            others = stat.S_IWOTH | (stat.S_IWGRP if found.st_gid else 0)
            if found.st_uid or found.st_mode & others:
                raise GpurunError(
                    f"{whole}{what} can be written by users other than root, so it is not executed: make it root's (chown "
                    "root:root, chmod go-w)"
                )
    if not os.fstat(program).st_mode & 0o111:
        raise GpurunError(f"{whole}{place} is not executable")


def _is_there(root: int, path: str) -> bool:
    try:
        os.close(open_in_root(root, path))
    except OSError:
        return False
    return True


def _library_dirs(whole: str) -> list[str]:
    """The directories below *whole* that have libraries of the driver."""
    root = open_driver_root(whole, os.uname().machine)
    with Fd(root.fd):
        return [path for path in library_dirs(root) if any(_is_there(root.fd, f"{path}/{name}") for name in _LIBRARIES)]


def mount_place(root: str, places: tuple[str, ...]) -> str:
    """The first of *places* that is a directory of *root*, with no link on the way.  Raises :class:`GpurunError`."""
    with Fd(os.open(root, O_PATH | O_DIRECTORY | os.O_CLOEXEC)) as fd:
        for place in places:
            try:
                os.close(openat2(fd, place.lstrip("/"), O_PATH | O_DIRECTORY, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS))
            except OSError:
                continue
            return place
    raise GpurunError(f"the driver's root {root} has no directory {' or '.join(places)}, which MPS needs there")
