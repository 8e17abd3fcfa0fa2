"""A launcher compiled for the Python that is running, from the sources that a launcher carries, and kept.

:mod:`gpurun.builder.any_python` runs this text, out of the sources, before anything of gpurun can be imported.  Compiling
takes seconds of processor time.  It is done by a process of its own, in a session of its own, which goes on when the call
that has started it is killed: a caller with a shorter time-out finds the launcher at its second or third call.  Of several
calls at once one compiles, and the others wait for it.

All is done in memory: a machine may have no directory that can be written to.  Where nothing can be kept each call compiles.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from fcntl import LOCK_EX, LOCK_NB, flock
from importlib.abc import Loader, MetaPathFinder
from importlib.util import spec_from_loader
from stat import S_ISREG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    #: (path, descriptor) of a launcher.
    Kept = tuple[str, int]

_LONGEST_WAIT = 60.0  # seconds, for another process that compiles


class _Sources(MetaPathFinder, Loader):
    """Imports modules from *texts*, file name → text."""

    def __init__(self, texts: dict[str, bytes]) -> None:
        self.texts = texts

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        stem = fullname.replace(".", "/")
        for file in (f"{stem}/__init__.py", f"{stem}.py"):
            if file in self.texts:
                spec = spec_from_loader(fullname, self, origin=file, is_package=file.endswith("/__init__.py"))
                if spec is not None:
                    spec.has_location = True
                return spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        file = str(module.__file__)
        exec(compile(self.texts[file], file, "exec", dont_inherit=True), module.__dict__)


def compile_launcher(python: str, commit: str, texts: dict[str, bytes]) -> bytes:
    """The launcher for the interpreter *python*, which is the one that runs, from *texts* (file name → text)."""
    sys.meta_path.insert(0, _Sources(texts))
    from gpurun.builder.launcher import assemble

    return assemble(python, commit, texts)


def make(
    python: str,
    commit: str,
    texts: dict[str, bytes],
    file: str,
    directories: Sequence[str],
    is_ours: Callable[[os.stat_result], bool],
    open_kept: Callable[[str], Kept | None],
) -> Kept:
    """Compile the launcher for *python* and keep it as *file* in the first of *directories* where that can be done.

    *is_ours* says by stat(2) whether no other user can write to a file or directory, *open_kept* opens what is kept by its
    name.  Returns (path, descriptor), of a file in memory where nothing could be kept.  Raises RuntimeError with the reason
    when there is no launcher in the end.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    directory, lock = _lock_file(directories, is_ours)
    path = f"{directory}/{file}" if lock >= 0 and _lock(lock, lambda: _is_kept(file, open_kept)) else ""
    found = open_kept(file)
    if found is not None:
        return found
    made = os.memfd_create("gpurun")
    child = os.fork()
    if child == 0:
        _compile_and_keep(made, lock, python, commit, texts, path)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if lock >= 0:
        os.close(lock)
    if status == 0:
        return open_kept(file) or (f"/proc/self/fd/{made}", made)
    said = os.pread(made, 1000, 0).decode(errors="replace") if status == 1 else f"the compiler ended with status {status}"
    raise RuntimeError(said)


def _lock_file(directories: Sequence[str], is_ours: Callable[[os.stat_result], bool]) -> tuple[str, int]:
    """(directory, descriptor) of the first directory where a launcher can be kept and of the file to lock in it; ("", -1)
    where there is none.  No other user can open that file, or they could make us wait."""
    for directory in directories:
        try:
            os.makedirs(directory, mode=0o755, exist_ok=True)
            if not is_ours(os.stat(directory)):
                continue
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(f"{directory}/.lock", flags, 0o600)
        except OSError:
            continue
        found = os.fstat(fd)
        if S_ISREG(found.st_mode) and is_ours(found):
            return directory, fd
        os.close(fd)
    return "", -1


def _is_kept(file: str, open_kept: Callable[[str], Kept | None]) -> bool:
    found = open_kept(file)
    if found is not None:
        os.close(found[1])
    return found is not None


def _lock(lock: int, is_kept: Callable[[], bool]) -> bool:
    """Lock the file open as *lock*; False where it cannot be, or another process has it for too long or until *is_kept*."""
    end = time.monotonic() + _LONGEST_WAIT
    while True:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
            return True
        except BlockingIOError:
            if is_kept() or time.monotonic() > end:
                return False
        except OSError:  # a file system that has no locks
            return False
        time.sleep(0.05)


def _compile_and_keep(made: int, lock: int, python: str, commit: str, texts: dict[str, bytes], path: str) -> None:
    """Write the launcher to the descriptor *made*, or in one line why there is none, then to *path* if that is not empty;
    the process ends with status 0 where there is one.  *lock* stays locked until then."""
    status = 1
    try:
        os.setsid()  # what ends the caller's process group does not end us
        os.chdir("/")
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):  # the caller's pipes end with the caller
            os.dup2(null, fd)
        kept = sorted({made, lock} - {-1})
        for first, last in zip([2, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(first + 1, last)
        program = compile_launcher(python, commit, texts)
        with open(made, "wb", closefd=False) as memory:
            memory.write(program)
        status = 0
        if path:
            _keep(path, program)
    except BaseException as e:
        if status:
            os.ftruncate(made, 0)
            os.pwrite(made, f"{type(e).__name__}: {e}".encode(errors="replace"), 0)
    finally:
        os._exit(status)


def _keep(path: str, program: bytes) -> None:
    """Have *program* in the file *path*, whole or not at all; what a killed process has left beside it is written over."""
    directory, _, name = path.rpartition("/")
    temporary = f"{directory}/.{name}.new"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o644)
        with open(fd, "wb") as file:
            os.fchmod(fd, 0o644)
            file.write(program)
        os.rename(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
