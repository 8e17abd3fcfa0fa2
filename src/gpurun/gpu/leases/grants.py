"""Which GPUs the device programs of its cgroup give to a process, whatever it has made of its /dev.

A container can rename the node of its GPU to a place where it is not looked for; its device program, which it cannot change,
still allows that GPU.  A program that allows all GPUs (privileged containers) says nothing of any of them.
"""

from __future__ import annotations

from gpurun.cgroup.device_access import device_programs, granted_numbers
from gpurun.cgroup.tree import find_tree
from gpurun.errors import GpurunError
from gpurun.gpu.leases.container_nodes import cgroup_of

_DRI = 226  # major of /dev/dri
_CARDS = (*range(16), *range(128, 144))  # minors: card0 and renderD128 onwards


class Grants:
    """``Grants(wanted, common)(pid)``: those of the device numbers *wanted* that the process may open, as far as somebody
    has allowed it those alone.

    None where it may open neither one of the *common* nodes that it takes to compute nor a node for graphics: it can look
    at them alone.
    """

    def __init__(self, wanted: frozenset[tuple[int, int]], common: frozenset[tuple[int, int]]) -> None:
        self._wanted = wanted
        own = [number for number in wanted if number[0] == _DRI]
        self._computing = list(dict.fromkeys([*[(_DRI, minor) for minor in _CARDS], *sorted(common), *sorted(own)]))
        try:
            self._root = find_tree().root
        except GpurunError:
            self._root = ""  # a host without cgroup v2 has no device programs

    def __call__(self, pid: int) -> frozenset[tuple[int, int]]:
        """Raises :class:`gpurun.errors.StepError` where the kernel cannot tell (no descriptor is left)."""
        path = cgroup_of(pid)
        if not self._root or path in ("", "/") or not self._wanted:
            return frozenset()
        programs = device_programs(f"{self._root}{path}")
        if not programs or not granted_numbers(programs, self._computing):
            return frozenset()
        return granted_numbers(programs, self._wanted)
