"""GPUs that came after this container, which it may not open: the container that takes its place may.

A pod without privileges is let open the GPUs by gpurun, its runtime (NVIDIA_VISIBLE_DEVICES=all, AMD_VISIBLE_DEVICES=all,
GPURUN_GPU_OPTIONAL=true): those that the node has when the container is made.  A driver that is loaded later, a GPU that is
added and a new MIG device have nodes that the device rules of the cgroup forbid.  So the process ends, and the kubelet
starts the container again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping

from gpurun import log
from gpurun.gpu.amd.host import DRIVER as AMD_DRIVER
from gpurun.gpu.host.drm import devices_of_driver
from gpurun.gpu.nvidia.host.gpus import read_gpus
from gpurun.gpu.nvidia.host.roots import Roots, dev_root
from gpurun.gpu.request.optional import may_be_without

#: Seconds between two looks.
_INTERVAL_S = 5.0


def forbidden_nodes(roots: Roots) -> list[str]:
    """The device nodes that are there, of NVIDIA's GPUs and MIG devices and of AMD's GPUs, and that the rules of this
    process's cgroup forbid."""
    return _of_nvidia(roots) + _of_amd(roots)


def _of_amd(roots: Roots) -> list[str]:
    # KFD tells of a GPU only those who may open it, so sysfs is asked. Intel's GPUs are read without opening them.
    devices = devices_of_driver(roots.sysroot, AMD_DRIVER)
    nodes = [device.render.host_path for device in devices if device.render is not None]
    found = [f"{roots.sysroot}/dev/kfd", *nodes] if devices else []
    return [path for path in found if _is_forbidden(path, os.O_RDWR)]


def _of_nvidia(roots: Roots) -> list[str]:
    gpus = read_gpus(roots)
    if not gpus:
        return []
    paths = [f"{dev_root(roots).rstrip('/')}/dev/nvidiactl", *[gpu.node.host_path for gpu in gpus]]
    found = [path for path in paths if _is_forbidden(path, os.O_RDWR)]
    capabilities = dict.fromkeys([node.host_path for gpu in gpus for mig in gpu.mig for node in mig.nodes])
    return found + [path for path in capabilities if _is_forbidden(path, os.O_RDONLY)]


def _is_forbidden(path: str, flags: int) -> bool:
    # access(2) asks those rules as open(2) does, and wakes no GPU.
    if os.access(path, os.R_OK | os.W_OK if flags == os.O_RDWR else os.R_OK) or not os.path.exists(path):
        return False
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as e:
        return e.errno == errno.EPERM  # of permissions it would be EACCES
    return False


class LateGpus:
    """Calls *end*, once, when there are such nodes; between :meth:`start` and :meth:`stop`.

    Only where the container's own environment *env* says that it has the GPUs of its beginning: elsewhere a container that
    is started again may open no more than before.
    """

    def __init__(
        self, roots: Roots, env: Mapping[str, str], end: Callable[[], None], interval_s: float = _INTERVAL_S
    ) -> None:
        self._roots, self._end, self._interval_s = roots, end, interval_s
        self._wanted = may_be_without(tuple([f"{name}={value}" for name, value in env.items()]))
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin to look, in a thread that never keeps the process alive."""
        if self._wanted:
            threading.Thread(target=self._run, name="late-gpus", daemon=True).start()

    def stop(self) -> None:
        """End it; returns at once."""
        self._stop.set()

    def _run(self) -> None:
        # A container that may open none of NVIDIA's has been made without GPUs; one that may open some lacks the others for
        # good, as those that the site excludes.  Of AMD's it has lacked from its beginning what does not compute.
        before = set(forbidden_nodes(self._roots))
        if any(path.endswith("/dev/nvidiactl") for path in before):
            before = {path for path in before if not path.rpartition("/dev/")[2].startswith("nvidia")}
        while True:
            late = [path for path in forbidden_nodes(self._roots) if path not in before]
            if late:
                log.warning(
                    f"{', '.join(late)}: this container may not open what came after it; it ends, to be started again"
                )
                self._end()
                return
            if self._stop.wait(self._interval_s):
                return
