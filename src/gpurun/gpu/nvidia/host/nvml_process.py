"""The helper process that loads the driver's NVML; see :mod:`gpurun.gpu.nvidia.host.nvml`, which starts it and ends it.

A create waits for it, so it imports neither ``json`` nor ``typing``: both import ``re``, a third of what it took to start.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

from gpurun.formats.jsontext import dumps
from gpurun.gpu.nvidia.host import modprobe
from gpurun.gpu.nvidia.host.nvml_confined import confine
from gpurun.gpu.nvidia.host.nvml_library import Nvml, NvmlError, describe
from gpurun.gpu.nvidia.host.roots import Roots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def answer(path: str, what: str, words: list[str], out: int) -> dict[str, Any]:
    """What the library at *path* says, or ``{"error": ...}``; of events only why there are no more."""
    try:
        nvml = Nvml(path)
    except OSError as e:
        return {"error": f"cannot load the library: {e}"}
    try:
        nvml.check("nvmlInit_v2")
        try:
            return _answer(nvml, what, words, out)
        finally:
            nvml.call("nvmlShutdown")
    except NvmlError as e:
        return {"error": str(e)}


def _answer(nvml: Nvml, what: str, words: list[str], out: int) -> dict[str, Any]:
    if what == "limits":
        from gpurun.gpu.nvidia.host.nvml_limits import set_limits

        return set_limits(nvml, words[1], words[2:])
    if what in ("mig", "change-mig"):
        from gpurun.gpu.nvidia.host.nvml_mig import change_mig, mig_state

        return mig_state(nvml) if what == "mig" else change_mig(nvml, words)
    if what == "details":
        from gpurun.gpu.nvidia.host.nvml_details import details

        return details(nvml)
    if what == "metrics":
        from gpurun.gpu.nvidia.host.nvml_counters import metrics
        from gpurun.gpu.nvidia.host.nvml_details import add_health

        counted = metrics(nvml, words)
        add_health(nvml, counted)
        return counted
    if what == "events":
        from gpurun.gpu.nvidia.host.nvml_events import events

        events(nvml, out)
    found = describe(nvml, what in ("usage", "leases"), links=what == "leases")
    if what in ("usage", "leases"):
        from gpurun.gpu.nvidia.host.nvml_details import add_health

        add_health(nvml, found)
    return found


def main() -> int:
    """``sys.argv[1:]``: the library's path, and what is asked: a word of :mod:`gpurun.gpu.nvidia.host.nvml`; of limits the
    root of the cgroup tree, the cgroup, and what :func:`gpurun.gpu.nvidia.host.nvml_limits.set_limits` takes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash of the library is reported; no core file is kept
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL: no caller, no question
    out = os.dup(1)
    os.set_inheritable(out, False)  # programs that the library starts must not hold the pipe open
    os.dup2(2, 1)  # what the library prints is no part of the answer
    if modprobe.can_make_present(Roots()):
        modprobe.make_present(Roots(), ())  # the library would make the nodes that are missing itself: not any more
    path, what, *words = sys.argv[1:]
    if what != "change-mig":  # which resets GPUs and has nodes made, as nvidia-smi of this administrator would
        confine(words[0] if what == "limits" else "")
    data = dumps(answer(path, what, words, out)).encode()
    while data:
        data = data[os.write(out, data) :]
    return 0
