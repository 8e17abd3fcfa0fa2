"""Which devices are well: device nodes, the driver's Xid errors, what NVML says of a GPU; when one is well again; pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpurun.gpu.nvidia.host.nvml_watch import XidEvent
from gpurun.kubernetes.node import NodeGpu, NodeGpus
from gpurun.record import Record

#: Errors of a program that do no harm to the GPU: exceptions, page faults, a reset channel and its clean-up, video, a
#: context switch that took too long.
APPLICATION_XIDS = frozenset((13, 31, 43, 45, 68, 109))
#: NVIDIA's variables: Xids (or ``all``, ``xids``) that do not count, and those that do whatever the first says.
DISABLE, ENABLE = "DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"
_ALL = ("all", "xids")
#: The driver takes a moment to know what a GPU needs after an Xid.
CALM_LOOKS = 3


class XidFilter(Record):
    """Which Xids count: those of *counted* always, of *ignored* never, any other unless *ignore_all*."""

    ignored: frozenset[int] = APPLICATION_XIDS
    counted: frozenset[int] = frozenset()
    ignore_all: bool = False
    count_all: bool = False

    def counts(self, xid: int) -> bool:
        """Whether a GPU with this Xid is unhealthy."""
        if self.count_all or xid in self.counted:
            return True
        return not self.ignore_all and xid not in self.ignored


def xid_filter(env: Mapping[str, str]) -> XidFilter:
    """What NVIDIA's variables in *env* say; words that are no number are left out, as there."""
    off, on = _words(env.get(DISABLE, "")), _words(env.get(ENABLE, ""))
    return XidFilter(APPLICATION_XIDS | _numbers(off), _numbers(on), any(w in _ALL for w in off), any(w in _ALL for w in on))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.lower().split(",")]


def _numbers(words: list[str]) -> frozenset[int]:
    return frozenset([int(word) for word in words if word.isascii() and word.isdigit()])


class HealthState:
    """What is known to be wrong, by the UUID of a GPU or MIG device.  Not thread-safe: the manager's one thread has it."""

    def __init__(self, counted: XidFilter) -> None:
        self._counted = counted
        self._xids: dict[str, int] = {}
        self._seen: set[str] = set()
        self._gone: set[str] = set()
        self._calm: dict[str, int] = {}  # UUID of a GPU → looks since when it needs no recovery

    def xid(self, event: XidEvent, node: NodeGpus) -> tuple[str, ...]:
        """Take *event* in; the UUIDs that are unhealthy for it: of a MIG device, of a GPU with all its parts, of all."""
        if not self._counted.counts(event.xid):
            return ()
        hit: list[str] = []
        for gpu in node.gpus:
            if event.uuid and gpu.uuid != event.uuid:
                continue
            part = [mig.uuid for mig in gpu.migs if (mig.gi, mig.ci) == (event.gi, event.ci)]
            hit += part or [gpu.uuid, *[mig.uuid for mig in gpu.migs]]
            self._calm[gpu.uuid] = 0
        for uuid in hit:
            self._xids[uuid] = event.xid
        return tuple(hit)

    def look(self, node: NodeGpus) -> None:
        """Take in what the node looks like now.

        A GPU that was gone and is back has been reset, and is well again; so is one of which the driver, which says what
        GPUs need, says :data:`CALM_LOOKS` times that it needs nothing.
        """
        present = {gpu.uuid for gpu in node.gpus if gpu.present and not gpu.problem}
        for uuid in self._seen:
            if uuid not in present:
                self._gone.add(uuid)
        for gpu in node.gpus:
            if gpu.uuid not in present:
                continue
            if gpu.uuid in self._gone:
                self._gone.discard(gpu.uuid)
                self._forgive(gpu)
            self._seen.add(gpu.uuid)
            calm = self._calm.get(gpu.uuid, 0) + 1 if gpu.recovery == "none" else 0
            self._calm[gpu.uuid] = calm
            if calm >= CALM_LOOKS:
                self._forgive(gpu)

    def _forgive(self, gpu: NodeGpu) -> None:
        for uuid in (gpu.uuid, *[mig.uuid for mig in gpu.migs]):
            self._xids.pop(uuid, None)

    def unhealthy(self, node: NodeGpus) -> dict[str, str]:
        """UUID of a GPU or MIG device → why it is not well."""
        found: dict[str, str] = {}
        for gpu in node.gpus:
            why = ""
            if not gpu.present:
                why = f"its device node {', '.join(gpu.paths)} is gone"
            elif gpu.problem:
                why = gpu.problem
            elif gpu.recovery not in ("", "none"):
                why = f"the driver says that it needs recovery: {gpu.recovery}"
            for uuid, present in ((gpu.uuid, True), *[(mig.uuid, mig.present) for mig in gpu.migs]):
                own = why or ("" if present else "its capability node is gone")
                if not own and uuid in self._xids:
                    own = f"Xid {self._xids[uuid]}"
                if own:
                    found[uuid] = own
        return found
