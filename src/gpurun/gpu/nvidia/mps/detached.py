"""A process that lives on when whoever has started it is gone: a service of systemd where that runs the host, else a process
of a session of its own, in the host's mount namespace, outside the cgroup of the pod that it was started from.
"""

from __future__ import annotations

import posix

from gpurun import log
from gpurun.errors import GpurunError, oserror_text
from gpurun.gpu.host.reads import exists
from gpurun.linux import process
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.fs import close_others
from gpurun.linux.mountinfo import mounts

_BOOTED = "/run/systemd/system"  # sd_booted(3)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CGROUP = "gpurun-mps"
_SIGNALS = 64


def start_detached(words: tuple[str, ...], unit: str, description: str, apart: bool = False) -> None:
    """Start *words* as the transient service *unit*, or without systemd.

    *apart*: whoever starts it may be in a pod, which ends with all that is in its cgroup and its mounts: without systemd the
    process leaves both.  Raises OSError.
    """
    if exists(_BOOTED):
        try:
            _start_unit(words, unit, description)
            return
        except GpurunError as e:
            log.warning(f"MPS: the daemon is not supervised by systemd: {e}")
    with Fd(posix.open("/dev/null", posix.O_RDWR | O_CLOEXEC)) as null:
        # A child of a child: whoever made this container waits only for children of its own.
        pid = posix.fork()
        if pid == 0:
            try:
                close_others((null,))  # an engine's pipes, which it waits for the end of
                if apart:
                    _leave_pod()
                posix.posix_spawn(
                    words[0], words, {"PATH": _PATH, "LC_ALL": "C.UTF-8"},
                    file_actions=[(posix.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)], setsid=True, setsigmask=(),
                    setsigdef=[n for n in range(1, _SIGNALS + 1) if n not in (9, 19, 32, 33)],
                )  # fmt: skip
            finally:
                posix._exit(0)
        posix.waitpid(pid, 0)


def _start_unit(words: tuple[str, ...], unit: str, description: str) -> None:
    from gpurun.cgroup.scope import Property
    from gpurun.cgroup.systemd import start_service

    # systemd would replace variables in the words of a command.
    command = tuple([word.replace("$", "$$") for word in words])
    properties = (
        Property("Description", "s", description),
        Property("ExecStart", "a(sasb)", ((words[0], command, False),)),
        Property("CollectMode", "s", "inactive-or-failed"),
        Property("Restart", "s", "on-abnormal"),
    )
    start_service(unit, properties)


def _leave_pod() -> None:
    """Go into the mount namespace of the host's first process, and into a cgroup there that no pod ends with.

    /proc is that of the host, whose root we have.
    """
    try:
        own, first = posix.stat("/proc/self/ns/mnt"), posix.stat("/proc/1/ns/mnt")
        if own.st_ino == first.st_ino:
            return  # the host's own process
        with Fd(posix.open("/proc/1/ns/mnt", posix.O_RDONLY | O_CLOEXEC)) as namespace:
            process.setns(namespace, process.CLONE_NEWNS)
    except OSError as e:
        log.warning(f"MPS: the daemon may end with this pod: {oserror_text(e)}")
        return
    for one in mounts():
        if one.fstype in ("cgroup", "cgroup2"):
            _enter_cgroup(one.point, one.fstype == "cgroup2")


def _enter_cgroup(root: str, unified: bool) -> None:
    """Move this process below *root*; in a hierarchy of v1, where a new directory may take none yet, to the top of it."""
    places = (f"{root}/{_CGROUP}", root) if unified else (root,)
    for place in places:
        try:
            if place != root and not exists(place):
                posix.mkdir(place)
            with Fd(posix.open(f"{place}/cgroup.procs", posix.O_WRONLY | O_CLOEXEC)) as fd:
                posix.write(fd, b"0")
            return
        except OSError as e:
            log.debug(f"{place}: {oserror_text(e)}")
