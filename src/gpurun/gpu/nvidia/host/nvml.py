"""Asking NVML, the driver's management library, for what procfs does not tell: MIG UUIDs, brands, memory, processes.

The library is the driver's own and may hang for minutes or crash with a driver that is not well.  So it is never loaded
here: a helper process (:mod:`gpurun.gpu.nvidia.host.nvml_process`) does it, in a process group of its own, with an
environment that has nothing of the caller's, and answers as JSON on a pipe.  At the deadline the group is killed; what
cannot be killed, because the kernel holds it in the driver, is left behind rather than waited for.
"""

from __future__ import annotations

import posix
import select
import time

from gpurun.errors import ConfigError, GpuError, oserror_text
from gpurun.gpu.nvidia.host.driver import module_version
from gpurun.gpu.nvidia.host.libraries import find_libraries, open_driver_root
from gpurun.gpu.nvidia.host.roots import Roots, driver_root_path
from gpurun.launcher.fresh_interpreter import NVML_ENTRY, child_command
from gpurun.linux.files import CHUNK, Fd
from gpurun.oci.reader import as_object, parse_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.cdi.edits import MemoryLimit

#: What may be asked: ``devices`` is who the GPUs and MIG devices are, ``usage`` that and memory, load and processes,
#: ``leases`` all that and what NVLink connects; for those who describe a node ``details``
#: (:func:`gpurun.gpu.nvidia.host.nvml_details.details`) and ``metrics`` (:func:`…nvml_counters.metrics`).
DEVICES, USAGE, LEASES, DETAILS, METRICS = "devices", "usage", "leases", "details", "metrics"
#: For :mod:`gpurun.gpu.nvidia.host.nvml_watch` alone, which waits for what comes.
EVENTS = "events"
#: For :func:`set_memory_limits`; and how much is no limit (NVML_DEVICE_MEMORY_LIMIT_MAX).
LIMITS, NO_LIMIT = "limits", (1 << 64) - 1
#: How GPUs are divided (:func:`gpurun.gpu.nvidia.host.nvml_mig.mig_state`); and, for :func:`change_mig`, that it changes.
MIG, CHANGE_MIG = "mig", "change-mig"
#: Seconds that changes of one GPU may take: a change of the mode resets it.
MIG_TIMEOUT_S = 180.0
#: Seconds that a container's creation waits; a GPU without persistence mode takes up to one second to wake.
TIMEOUT_S = 10.0

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_LIMIT = 8 << 20  # bytes of an answer: eight GPUs with a thousand processes each are below one
_SIGKILL, _SIGNALS = 9, 64
_GRACE_S = 0.5  # after SIGKILL; a process that the driver holds in the kernel does not die at all


def query(
    library: str, what: str = DEVICES, timeout_s: float = TIMEOUT_S, words: tuple[str, ...] = ()
) -> dict[str, Any]:  # fmt: skip
    """The answer of the NVML *library* (an absolute path) to *what* (one of :data:`DEVICES` and those beside it).

    ``driverVersion``, ``cudaVersion`` (``"12.4"``), ``memoryLimits`` (whether :func:`set_memory_limits` is there), and
    ``gpus`` in NVML's order, each with ``index``, ``uuid``, ``busId`` (as procfs writes it), ``minor``, ``name``, ``brand``
    (as ``NVIDIA_REQUIRE_*`` has it), ``architecture``, ``computeCapability``, ``coherent``, ``migMode`` and ``migDevices``
    (``index``, ``uuid``, ``gpuInstance``, ``computeInstance``, ``profile``); ``usage`` adds ``memoryTotal`` and
    ``memoryUsed`` (bytes), ``utilization`` (percent) and ``processes`` (``pid``, ``kind``, ``memory``, ``gpuInstance``,
    ``computeInstance``), and ``recoveryAction`` (``none``, ``reset``...) and ``rowRemapFailure``; ``leases`` adds
    ``nvlinks`` as well (indices of the GPUs that NVLink leads to).  *words* are more of ``metrics``, which takes time
    (:data:`gpurun.gpu.nvidia.host.nvml_counters.PCIE` and ``GPM`` there).  What this driver cannot tell is None; a GPU that
    fails has ``error``.

    Raises :class:`GpuError` in one sentence when the library cannot be used, crashes, or has not answered after
    *timeout_s* seconds.
    """
    if what not in (DEVICES, USAGE, LEASES, DETAILS, METRICS, MIG) or not library.startswith("/"):
        raise ValueError(f"query({library!r}, {what!r})")
    return _ask(library, (what, *words), timeout_s)


def set_memory_limits(root: str, cgroup: str, limits: tuple[MemoryLimit, ...]) -> None:
    """Set the *limits* of GPUs' memory, all by one library, for the *cgroup*, a directory of the tree at *root*.

    A soft limit of 0 and a hard one of :data:`NO_LIMIT` take what was set away.  Raises :class:`GpuError` as :func:`query`.
    """
    words = [word for limit in limits for word in (limit.gpu, str(limit.soft), str(limit.hard))]
    _ask(limits[0].library, (LIMITS, root, cgroup, *words), TIMEOUT_S)


def change_mig(library: str, words: tuple[str, ...], timeout_s: float = MIG_TIMEOUT_S) -> dict[str, Any]:
    """Have the NVML *library* divide GPUs: *words* and the answer are :func:`gpurun.gpu.nvidia.host.nvml_mig.change_mig`'s.

    *timeout_s* is in seconds.  Raises :class:`GpuError` as :func:`query`: then nobody knows how far it came.
    """
    return _ask(library, (CHANGE_MIG, *words), timeout_s)


def _ask(library: str, words: tuple[str, ...], timeout_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    pid, read = start(library, *words)
    try:
        data = _read_until(read, deadline)
    finally:
        posix.close(read)
        status = end(pid, deadline)
    if data is None:
        raise GpuError(
            f"NVML gave no answer within {timeout_s:g} s ({library}): the NVIDIA driver hangs or is very slow; `dmesg` says "
            "more (NVRM, Xid), nvidia-persistenced makes it faster"
        )
    return _answer(data, status, library)


def find_nvml(roots: Roots) -> str:
    """The host path of the driver's libnvidia-ml of the kernel module's version.  Raises :class:`GpuError` without one."""
    version = module_version(roots)
    root = open_driver_root(driver_root_path(roots), posix.uname().machine)
    with Fd(root.fd):
        found = find_libraries(root, version, ("utility",), compat32=False) if version else ()
    for library in found:
        if library.name.startswith("libnvidia-ml.so."):
            return library.host_path
    raise GpuError(
        f"NVML cannot be asked: there is no libnvidia-ml.so.{version or '1'} under {root.path or '/'}"
        + ("" if version else ", and the kernel module is not loaded")
    )


def start(library: str, *words: str) -> tuple[int, int]:
    """Start the helper; its pid, and the descriptor of what it answers.

    Returns (pid, descriptor).  Raises :class:`GpuError` when no process can be made.
    """
    command = child_command(NVML_ENTRY)
    read, write = posix.pipe()
    null = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
    # The helper's standard descriptors; two steps, because any of the numbers may be 0 to 2 here.
    high = max(read, write, null, 2 if command.fd is None else command.fd) + 1
    actions: list[tuple[int, ...]] = [(posix.POSIX_SPAWN_DUP2, null, high), (posix.POSIX_SPAWN_DUP2, write, high + 1)]
    argv = list(command.argv)
    if command.fd is not None:
        actions.append((posix.POSIX_SPAWN_DUP2, command.fd, high + 2))
        actions.append((posix.POSIX_SPAWN_DUP2, high + 2, 3))
        actions.append((posix.POSIX_SPAWN_CLOSE, high + 2))
        argv[argv.index(str(command.fd), 1)] = "3"
    actions += [(posix.POSIX_SPAWN_DUP2, high, 0), (posix.POSIX_SPAWN_DUP2, high + 1, 1), (posix.POSIX_SPAWN_DUP2, high, 2)]
    actions += [(posix.POSIX_SPAWN_CLOSE, high), (posix.POSIX_SPAWN_CLOSE, high + 1)]
    with Fd(write), Fd(null):
        try:
            pid = posix.posix_spawn(
                command.executable, (*argv, library, *words), _ENVIRONMENT, file_actions=actions, setpgroup=0,
                setsigmask=(), setsigdef=[n for n in range(1, _SIGNALS + 1) if n not in (_SIGKILL, 19, 32, 33)],
            )  # fmt: skip
        except OSError as e:
            posix.close(read)
            raise GpuError(f"NVML cannot be asked: {oserror_text(e)}") from None
    return pid, read


def _read_until(fd: int, deadline: float) -> bytes | None:
    """What is written to *fd* until its end; None when that has not come by *deadline*."""
    chunks: list[bytes] = []
    size = 0
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    while size < _LIMIT:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return None
        chunk = posix.read(fd, CHUNK)
        if not chunk:
            break
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


def end(pid: int, deadline: float) -> int | None:
    """End what is left of the helper's process group and return the helper's wait status, None when it will not die.

    It is not reaped before the group is killed: until then the number is nobody else's.
    """
    if not _ended(pid, min(deadline, time.monotonic() + _GRACE_S)):
        posix.kill(pid, _SIGKILL)
    try:
        posix.killpg(pid, _SIGKILL)  # programs that the library started, too
    except OSError:
        pass  # all gone
    return posix.waitpid(pid, 0)[1] if _ended(pid, time.monotonic() + _GRACE_S) else None


def _ended(pid: int, deadline: float) -> bool:
    while posix.waitid(posix.P_PID, pid, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)
    return True


def _answer(data: bytes, status: int | None, library: str) -> dict[str, Any]:
    if status is not None and posix.WIFSIGNALED(status):
        raise GpuError(
            f"NVML crashed with signal {posix.WTERMSIG(status)} ({library}): reinstall or restart the NVIDIA driver"
        )
    try:
        answer = as_object(parse_json(data, "NVML"), "NVML")
    except ConfigError:
        raise GpuError(f"NVML gave no answer ({library}): its process ended with status {status}") from None
    if "error" in answer:
        raise GpuError(f"NVML error: {answer['error']} ({library})")
    return answer
