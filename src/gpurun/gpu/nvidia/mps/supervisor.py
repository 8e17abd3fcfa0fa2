"""The process beside an MPS daemon that gpurun has started: it starts the daemon again when that dies, and ends both when
no container has a share of the GPU any more.  Where no systemd starts it again, a parent of its own does.

``python -ISBc … gpurun.gpu.nvidia.mps.supervisor:main SERVICE TOKEN``, SERVICE being a
:class:`gpurun.gpu.nvidia.mps.service.Service` as JSON.  What keeps the daemon from starting is left in ``failed.TOKEN``.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import sys
import time

from gpurun import log
from gpurun.errors import GpurunError
from gpurun.gpu.leases.liveness import open_process
from gpurun.gpu.leases.store import Store
from gpurun.gpu.nvidia.mps.daemon import MpsDaemon, MpsLimits
from gpurun.gpu.nvidia.mps.service import START_S, Service, is_served
from gpurun.linux import mount as lm
from gpurun.linux import procfs
from gpurun.linux.files import unlink_if_there, write_atomically
from gpurun.oci.reader import as_object, parse_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurun.gpu.leases.lease import Lease

#: Seconds between two looks at the shares where no process tells by its end that one is over.
_LOOK_S = 1.0
#: Seconds between two looks otherwise, and before a daemon that has died is started again.
_LONG_S, _AGAIN_S = 10.0, 1.0


def main() -> int:
    """Entry point of the process; returns its exit code."""
    return _serve() if "INVOCATION_ID" in os.environ else restart_when_killed(_serve)


def restart_when_killed(serve: Callable[[], int]) -> int:
    """*serve* in a child, another one where a signal has ended it: what systemd does where it runs the host."""
    while True:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = serve()
            finally:
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        if not os.WIFSIGNALED(status):
            return os.waitstatus_to_exitcode(status)
        time.sleep(_AGAIN_S)


def _serve() -> int:
    """Have the daemon run until no container has a share; returns the exit code."""
    service = Service(**as_object(parse_json(sys.argv[1].encode("utf-8", "surrogateescape"), "SERVICE"), "SERVICE"))
    os.umask(0o022)
    lock = os.open(f"{service.directory}/lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if not _take_lock(lock, service):
        return 0
    # What one left behind that was killed: its containers may have the directory mounted, so that stays.
    unlink_if_there(f"{service.directory}/ready")
    store = Store(service.store)
    daemon = MpsDaemon(f"{service.directory}/daemon", (service.uuid,), MpsLimits(), service.programs, exclusive=False)
    daemon.keep = True
    try:
        with store:
            if not _users(store, service.key):
                return 0
        mount_shm(service.shm, service.shm_size)
        daemon.start()
        _announce(service)
        _watch(store, service, daemon)
    except (GpurunError, OSError) as e:
        # Who waits takes the file away once it has read it: of one that were still empty it would learn nothing.
        said = str(e).encode("utf-8", "surrogateescape")
        write_atomically(f"{service.directory}/failed.{sys.argv[2]}", said, 0o644)
        return 1
    finally:
        daemon.stop()
        _tidy(service, store)
    return 0


def _take_lock(lock: int, service: Service) -> bool:
    """Whether this process is the one that watches the daemon; false where another one does, which has it ready."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if is_served(service):
                return False
        time.sleep(0.05)
    return False


def _users(store: Store, key: str) -> list[Lease]:
    """The shares of the GPU *key* that hold."""
    return [one for one in store.leases() if one.kind == "share" and key in [unit.key for unit in one.units]]


def _watch(store: Store, service: Service, daemon: MpsDaemon) -> None:
    """Return when no container has a share, with ``ready`` taken away; what goes wrong until then is tried again."""
    while True:
        try:
            users = _users(store, service.key)
            if not users:
                with store:
                    users = _users(store, service.key)
                    if not users:
                        unlink_if_there(f"{service.directory}/ready")
                        return
            if not daemon.alive():
                log.warning(f"the MPS daemon of GPU {service.key} has ended, it is started again")
                unlink_if_there(f"{service.directory}/ready")
                daemon.start()
                _announce(service)
            _await_change(users, daemon.pid)
        except (GpurunError, OSError) as e:
            log.warning(str(e))
            time.sleep(_AGAIN_S)


def _announce(service: Service) -> None:
    """Say that the daemon answers, and who watches it."""
    found = procfs.stat(os.getpid())
    text = f"{os.getpid()} {found[1] if found is not None else 0}\n"
    write_atomically(f"{service.directory}/ready", text.encode(), 0o644)


def _await_change(users: list[Lease], daemon: int) -> None:
    """Wait until a process has ended that has a share, or the daemon."""
    processes = [(one.pid or one.maker, one.start_time if one.pid else one.maker_start) for one in users]
    opened = [open_process(pid, start) for pid, start in processes]
    known = [fd for fd in opened if fd >= 0]
    waiting = select.poll()
    try:
        known.append(os.pidfd_open(daemon))  # a child, which is there until it is waited for
        for fd in known:
            waiting.register(fd, select.POLLIN)
        # The end of the first process need not be that of the container: then its cgroup is looked at.
        waiting.poll((_LONG_S if min(opened) >= 0 else _LOOK_S) * 1000)
    finally:
        for fd in known:
            os.close(fd)


def mount_shm(path: str, size: int) -> None:
    """Mount the memory that daemon and containers share, at most *size* bytes of it; what is there already stays."""
    os.makedirs(path, 0o755, exist_ok=True)
    if os.stat(path).st_dev == os.stat(f"{path}/..").st_dev:
        flags = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC  # the numbers are those of mount(2)
        lm.mount("gpurun-mps", path, "tmpfs", flags, f"mode=1777,size={size}")


def _tidy(service: Service, store: Store) -> None:
    """Remove what no container has mounted any more."""
    with store:
        if any(one.pid for one in _users(store, service.key)):
            return  # the daemon could not be started again: containers have its directory mounted, for the next one
        unlink_if_there(f"{service.directory}/ready")
        while os.path.ismount(service.shm):
            lm.umount2(service.shm, lm.MNT_DETACH)
        shutil.rmtree(f"{service.directory}/daemon", ignore_errors=True)
