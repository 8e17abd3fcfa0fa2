"""The MPS daemons of the resources that are shared by MPS: started, watched, started again, ended."""

from __future__ import annotations

from gpurun import log
from gpurun.errors import GpurunError
from gpurun.gpu.mps.daemon import MpsDaemon, replica_limits
from gpurun.kubernetes.device_plugin.resources import Offer
from gpurun.kubernetes.device_plugin.response import MpsPlace

#: More clients than that one daemon does not serve (16 before Volta, which no driver of today supports).
MAX_CLIENTS = 48


class MpsDaemons:
    """A daemon for each resource; *programs* is where NVIDIA's programs are (default: PATH), *root* the host's root here."""

    def __init__(self, programs: str = "", root: str = "") -> None:
        self._programs, self._root = programs, root
        self._daemons: dict[str, MpsDaemon] = {}
        self._problems: dict[str, str] = {}

    def keep(self, shared: list[Offer], root: str) -> None:
        """Have a daemon for each of *shared* and for no other; one that has died is started again.

        Raises :class:`GpurunError` for more replicas than a daemon can serve.
        """
        for name in [name for name in self._daemons if name not in {offer.name for offer in shared}]:
            self._daemons.pop(name).stop()
            self._problems.pop(name, None)
        for offer in shared:
            memory = {device.uuid: device.memory for device in offer.devices}
            uuids = tuple(memory)
            limits = replica_limits(list(memory.values()), offer.replicas)
            daemon = self._daemons.get(offer.name)
            if daemon is not None and daemon.alive() and (daemon.uuids, daemon.limits) == (uuids, limits):
                continue
            if daemon is not None:
                log.warning(f"{offer.name}: the MPS daemon {'is started anew' if daemon.alive() else 'has ended'}")
                daemon.stop()
            self._daemons[offer.name] = daemon = MpsDaemon(
                f"{root}/{offer.name.replace('/', '-')}", uuids, limits, self._programs, root=self._root
            )
            try:
                if offer.replicas > MAX_CLIENTS:
                    raise GpurunError(f"{offer.replicas} replicas: an MPS daemon serves at most {MAX_CLIENTS} clients")
                daemon.start()
                self._problems.pop(offer.name, None)
            except GpurunError as e:
                self._problems[offer.name] = f"MPS: {e}"

    def problem(self, name: str) -> str:
        """Why the resource *name* cannot be shared now; empty when it can."""
        return self._problems.get(name, "")

    def place(self, name: str) -> MpsPlace | None:
        """Where the daemon of the resource *name* is; None when it has none."""
        daemon = self._daemons.get(name)
        return MpsPlace(daemon.pipes, daemon.shm) if daemon is not None else None

    def stop(self) -> None:
        """End them all."""
        for daemon in self._daemons.values():
            daemon.stop()
        self._daemons.clear()
