"""Asking NVML, the driver's management library, for what procfs does not tell: MIG UUIDs, brands, memory, processes.

The library is the driver's own and may hang for minutes or crash with a driver that is not well.  So it is never loaded
here: a helper process (:mod:`gpurun.gpu.nvidia.host.nvml_process`, started as :mod:`gpurun.gpu.host.helper` does) loads it,
and answers as JSON.
"""

from __future__ import annotations

import posix

from gpurun.errors import ConfigError, GpuError, oserror_text
from gpurun.gpu.host import helper
from gpurun.gpu.nvidia.host.driver import module_version
from gpurun.gpu.nvidia.host.libraries import find_libraries, open_driver_root
from gpurun.gpu.nvidia.host.roots import Roots, driver_root_path
from gpurun.launcher.fresh_interpreter import NVML_ENTRY
from gpurun.linux.files import Fd
from gpurun.oci.reader import as_object, parse_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpurun.cdi.edits import MemoryLimit

#: What may be asked: ``devices`` is who the GPUs and MIG devices are, ``usage`` that and memory, load and processes,
#: ``leases`` all that and what NVLink connects; for those who describe a node ``details``
#: (:func:`gpurun.gpu.nvidia.host.nvml_details.details`) and ``metrics`` (:func:`…nvml_counters.metrics`).
DEVICES, USAGE, LEASES, DETAILS, METRICS = "devices", "usage", "leases", "details", "metrics"
#: For :mod:`gpurun.gpu.nvidia.host.nvml_watch` only, which waits for what comes.
EVENTS = "events"
#: For :func:`set_memory_limits`; and how much is no limit (NVML_DEVICE_MEMORY_LIMIT_MAX).
LIMITS, NO_LIMIT = "limits", (1 << 64) - 1
#: How GPUs are divided (:func:`gpurun.gpu.nvidia.host.nvml_mig.mig_state`); and, for :func:`change_mig`, that it changes.
MIG, CHANGE_MIG = "mig", "change-mig"
#: Seconds that changes of one GPU may take: a change of the mode resets it.
MIG_TIMEOUT_S = 180.0
#: Seconds that a container's creation waits; a GPU without persistence mode takes up to one second to wake.
TIMEOUT_S = 10.0


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

    *timeout_s* is in seconds.  Raises :class:`GpuError` as :func:`query`: then it is not known how far it came.
    """
    return _ask(library, (CHANGE_MIG, *words), timeout_s)


def _ask(library: str, words: tuple[str, ...], timeout_s: float) -> dict[str, Any]:
    if helper.is_held(NVML_ENTRY):
        raise GpuError(f"NVML is not asked ({library}): the NVIDIA driver still holds the process that asked it before")
    try:
        answer = helper.ask(NVML_ENTRY, (library, *words), timeout_s)
    except OSError as e:
        raise GpuError(f"NVML cannot be asked: {oserror_text(e)}") from None
    if answer.data is None:
        raise GpuError(
            f"NVML gave no answer within {timeout_s:g} s ({library}): the NVIDIA driver hangs or is very slow; `dmesg` says "
            "more (NVRM, Xid), nvidia-persistenced makes it faster"
        )
    return _answer(answer.data, answer.status, library)


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
    try:
        return helper.start(NVML_ENTRY, (library, *words))
    except OSError as e:
        raise GpuError(f"NVML cannot be asked: {oserror_text(e)}") from None


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
