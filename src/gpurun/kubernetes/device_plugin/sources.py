"""What a node offers of one maker's GPUs, as the manager asks for it; each maker's failures are its own."""

from __future__ import annotations

from typing import Protocol

from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.device_plugin.plugin import Offering


class Source(Protocol):
    """The GPUs of one maker; the manager's one thread calls all but :meth:`keep_spec`, which any thread may call."""

    def start(self) -> None:
        """Begin to listen for what the driver says, if it says anything."""

    def stop(self) -> None:
        """End that."""

    def offerings(self, config: PluginConfig) -> tuple[Offering, ...]:
        """Look at the GPUs; what is offered of them now, at least one resource.  Raises :class:`GpurunError`."""

    def expected(self) -> bool:
        """Whether the node has GPUs of the maker, so that having none to offer is a problem."""

    def keep_spec(self) -> None:
        """Have the CDI file there, as it is to be.  Raises :class:`GpurunError`."""
