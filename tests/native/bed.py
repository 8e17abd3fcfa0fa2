"""The bed that real containers lie in: a cgroup2 tree at ``/sys/fs/cgroup``, and a part of it that is ours.

Where the host has a unified cgroup tree the tests run directly on it.  A hybrid host keeps cgroup2 elsewhere; there the
commands run in a private mount namespace that shows it at the usual place.  One small process holds that namespace; each
command enters it in its own child, so the test process itself never changes.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CGROUP2_SUPER_MAGIC = 0x63677270
CLONE_NEWNS = 0x20000
PR_SET_CHILD_SUBREAPER = 36

_HOLD = "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && echo ready && read -r _"
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
        self._holder: subprocess.Popen[str] | None = None
        self._namespace = -1
        if _statfs_type("/sys/fs/cgroup") == CGROUP2_SUPER_MAGIC:
            self.view = "/"
        else:
            self._hold_namespace()
        self.cgroup_root = Path(self.view, "sys/fs/cgroup")
        self.controllers = frozenset((self.cgroup_root / "cgroup.controllers").read_text().split())
        self.subtree = f"/gpurun-test-{os.getpid()}-{secrets.token_hex(3)}"
        # Commands get a cgroup of their own: a runtime that mistakes its own for the container's kills only itself.
        self.callers = self.cgroup(self.subtree) / "callers"
        self.callers.mkdir(parents=True)
        # As a shim does: containers that lose their runtime become ours, and we are the one who learns how they ended.
        if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")

    def _hold_namespace(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _HOLD],
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
        return frozenset([self._holder.pid]) if self._holder else frozenset()

    def enter(self, cwd: str | None = None) -> Callable[[], None]:
        """What a child must call between fork and exec (``preexec_fn``) to be in the bed; entering loses the cwd."""
        namespace, setns, get_errno = self._namespace, _libc.setns, ctypes.get_errno
        directory = os.path.abspath(cwd or os.getcwd())
        procs = str(self.callers / "cgroup.procs")

        def enter() -> None:
            with open(procs, "w") as f:
                f.write("0")
            if namespace >= 0:
                if setns(namespace, CLONE_NEWNS):
                    raise OSError(get_errno(), "setns")
                os.chdir(directory)

        return enter

    def cgroup(self, path: str) -> Path:
        """The directory of cgroup *path* as this process reaches it."""
        return self.cgroup_root / path.lstrip("/")

    def mounts(self) -> list[str]:
        """The mountinfo lines of the bed's namespace."""
        pid = self._holder.pid if self._holder else os.getpid()
        return Path(f"/proc/{pid}/mountinfo").read_text().splitlines()

    def close(self) -> None:
        remove_cgroup(self.cgroup(self.subtree))
        if self._holder:
            os.close(self._namespace)
            self._holder.communicate("\n", timeout=10)


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
