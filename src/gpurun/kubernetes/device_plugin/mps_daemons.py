"""The MPS daemons of the resources that are shared by MPS: wanted from the node, and watched.

They are the node's (:mod:`gpurun.gpu.nvidia.mps.node_service`) and go on without this process: pods that compute notice
nothing when the plugin ends, or another version of it begins.
"""

from __future__ import annotations

import os

from gpurun import log
from gpurun.errors import GpurunError
from gpurun.gpu.nvidia.mps.daemon import replica_limits
from gpurun.gpu.nvidia.mps.node_service import NodeService, end, ensure
from gpurun.kubernetes.device_plugin.resources import Offer
from gpurun.kubernetes.device_plugin.response import MpsPlace
from gpurun.kubernetes.node_programs import driver_root_of, own_program
from gpurun.kubernetes.specs import NodeHost

_MAX_CLIENTS, _MAX_BEFORE_VOLTA = 48, 16
#: The beginning of the names of the DRA driver's directories, which are beside those of this plugin.
CLAIM = "claim-"


def max_clients(offer: Offer) -> int:
    """How many clients the MPS daemon of *offer* serves (CUDA MPS, "Limitations"; GPUs before Volta: "Volta MPS")."""
    return _MAX_BEFORE_VOLTA if any(device.before_volta for device in offer.devices) else _MAX_CLIENTS


class MpsDaemons:
    """A daemon for each resource of *host*; *programs* is where NVIDIA's programs are (default: PATH)."""

    def __init__(self, host: NodeHost, programs: str = "") -> None:
        self._host, self._programs = host, programs
        self._directories: dict[str, str] = {}
        self._problems: dict[str, str] = {}

    def keep(self, shared: list[Offer], root: str) -> None:
        """Have a daemon for each of *shared* and for no other, whoever started it; one that has died is started again.

        Raises nothing: what goes wrong with one is its :meth:`problem`.
        """
        directories = {offer.name: f"{root}/{offer.name.replace('/', '-')}" for offer in shared}
        self._end_others(root, {os.path.basename(path) for path in directories.values()})
        self._directories = directories
        self._problems = {name: why for name, why in self._problems.items() if name in directories}
        for offer in shared:
            try:
                if offer.replicas > max_clients(offer):
                    raise GpurunError(
                        f"{offer.replicas} replicas: an MPS daemon serves at most {max_clients(offer)} clients"
                    )
                ensure(directories[offer.name], self._service(offer), own_program(self._host))
                self._problems.pop(offer.name, None)
            except GpurunError as e:
                self._problems[offer.name] = str(e) if str(e).startswith("MPS") else f"MPS: {e}"

    def _service(self, offer: Offer) -> NodeService:
        memory = {device.uuid: device.memory for device in offer.devices}
        limits = replica_limits(list(memory.values()), offer.replicas)
        root = driver_root_of(self._host)
        return NodeService(tuple(memory), limits.threads, limits.memory, root, "" if root else self._programs)

    def _end_others(self, root: str, wanted: set[str]) -> None:
        """End what is not shared any more, also of a plugin before this one."""
        for name in os.listdir(root) if os.path.isdir(root) else ():
            if name in wanted or name.startswith(CLAIM):
                continue
            try:
                end(f"{root}/{name}", own_program(self._host))
            except GpurunError as e:
                log.warning(str(e))

    def problem(self, name: str) -> str:
        """Why the resource *name* cannot be shared now; empty when it can."""
        return self._problems.get(name, "")

    def place(self, name: str) -> MpsPlace | None:
        """Where the daemon of the resource *name* is; None when it has none."""
        directory = self._directories.get(name)
        return MpsPlace(f"{directory}/pipe", f"{directory}/shm") if directory is not None else None
