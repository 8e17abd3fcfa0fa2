"""The bed that real containers lie in: a mount namespace as users' hosts have it, and a cgroup subtree that is ours.

All its mounts are shared, ``/`` and ``/dev`` too, as on every host that systemd has booted: what a container's mounts do
to the host's is seen here, and only here, for the namespace receives nothing from the host's and sends nothing to it.  On
a host that keeps cgroup2 elsewhere than at ``/sys/fs/cgroup`` (hybrid mode) it is there.  One small process holds the
namespace; each command enters it in its own child, so the test process itself never changes.  A compiled program enters it
for nearly all commands (enter.c), for it can be started with vfork(2): a process that has collected all tests has some 350
MB, and fork(2) of it took as long as a command of the runtime itself.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.compiled import c_compiler

CGROUP2_SUPER_MAGIC = 0x63677270
CLONE_NEWNS = 0x20000
PR_SET_CHILD_SUBREAPER = 36

_UNIFY = "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup"
_HOLD = "mount --make-rshared / && echo ready && read -r _"
_libc = ctypes.CDLL(None, use_errno=True)


class BedUnavailable(Exception):
    """This machine cannot run real containers; the text says why."""


class Bed:
    """Where the runtime's commands run.

    *subtree* is the cgroup (absolute in the tree, as ``cgroupsPath`` wants it) under which all containers of a test run
    are put; *cgroup_root* is the cgroup2 tree as **this** process reaches it; *controllers* are those of the tree.
    """

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise BedUnavailable("real containers need root")
        unified = _statfs_type("/sys/fs/cgroup") == CGROUP2_SUPER_MAGIC
        self._hold_namespace(_HOLD if unified else f"{_UNIFY} && {_HOLD}")
        self.cgroup_root = Path(self.view, "sys/fs/cgroup")
        self.controllers = frozenset((self.cgroup_root / "cgroup.controllers").read_text().split())
        self.subtree = f"/gpurun-test-{os.getpid()}-{secrets.token_hex(3)}"
        # Commands get a cgroup of their own: a runtime that mistakes its own for the container's kills only itself.
        self.callers = self.cgroup(self.subtree) / "callers"
        self.callers.mkdir(parents=True)
        # As a shim does: containers that lose their runtime become ours, and we are the one who learns how they ended.
        if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self._directory = tempfile.mkdtemp(prefix="gpurun-bed.", dir="/var/tmp")
        self._program = _compiled(Path(self._directory))

    def _hold_namespace(self, script: str) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if self._holder.stdout.readline() != "ready\n":
            raise BedUnavailable(f"no private mount namespace with cgroup2: {self._holder.stderr.read().strip()}")
        self._namespace = os.open(f"/proc/{self._holder.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self.view = f"/proc/{self._holder.pid}/root"

    @property
    def own_pids(self) -> frozenset[int]:
        """Processes of the bed itself, which are no leak."""
        return frozenset([self._holder.pid])

    def command(self, argv: Sequence[str], cwd: str | None = None) -> tuple[list[str], Callable[[], None] | None]:
        """What to execute, and the ``preexec_fn`` that it needs, for *argv* to be executed in the bed, in *cwd*.

        The second is None where the program that enters could be compiled; else it is :meth:`enter`.
        """
        if self._program is None:
            return [*argv], self.enter(cwd)
        directory = os.path.abspath(cwd or os.getcwd())
        namespace = f"/proc/{self._holder.pid}/ns/mnt"
        return [str(self._program), str(self.callers / "cgroup.procs"), namespace, directory, *argv], None

    def enter(self, cwd: str | None = None) -> Callable[[], None]:
        """What a child must call between fork and exec (``preexec_fn``) to be in the bed; entering loses the cwd."""
        namespace, setns, get_errno = self._namespace, _libc.setns, ctypes.get_errno
        directory = os.path.abspath(cwd or os.getcwd())
        procs = str(self.callers / "cgroup.procs")

        def enter() -> None:
            with open(procs, "w") as f:
                f.write("0")
            if setns(namespace, CLONE_NEWNS):
                raise OSError(get_errno(), "setns")
            os.chdir(directory)

        return enter

    def run(self, *argv: str) -> str:
        """Standard output of a command of the host's, which must succeed."""
        command, before = self.command(argv)
        done = subprocess.run(command, preexec_fn=before, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def cgroup(self, path: str) -> Path:
        """The directory of cgroup *path* as this process reaches it."""
        return self.cgroup_root / path.lstrip("/")

    def mounts(self) -> list[str]:
        """The mountinfo lines of the bed's namespace."""
        return Path(f"/proc/{self._holder.pid}/mountinfo").read_text().splitlines()

    def close(self) -> None:
        remove_cgroup(self.cgroup(self.subtree))
        os.close(self._namespace)
        self._holder.communicate("\n", timeout=10)
        shutil.rmtree(self._directory)


def _compiled(directory: Path) -> Path | None:
    """The program of enter.c, in *directory*; None where there is no C compiler."""
    compiler = c_compiler()
    if compiler is None:
        return None
    program = directory / "enter"
    source = Path(__file__).with_name("enter.c")
    subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-o", str(program), str(source)], check=True)
    return program


def remove_cgroup(directory: Path) -> None:
    """Kill what is in a cgroup and remove it with all below it; EBUSY lasts until the killed are reaped."""
    if not directory.exists():
        return
    (directory / "cgroup.kill").write_text("1")
    for attempt in range(200):
        try:
            for path in below(directory):
                path.rmdir()
            return
        except OSError:
            if attempt == 199:
                raise
            time.sleep(0.02)


def below(directory: Path) -> Iterator[Path]:
    """The directories under *directory*, deepest first, and itself last."""
    for root, names, _ in os.walk(directory, topdown=False):
        yield from (Path(root, name) for name in names)
    yield directory


def _statfs_type(path: str) -> int:
    buffer = ctypes.create_string_buffer(256)
    if _libc.statfs(path.encode(), buffer):
        return -1
    return int.from_bytes(buffer.raw[:8], "little")
