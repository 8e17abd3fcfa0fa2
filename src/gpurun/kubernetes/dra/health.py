"""How the devices of the pool are, as the kubelet watches it (DRAResourceHealth v1alpha1) for the status of pods."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gpurun.kubernetes.protocols import dra_health_v1alpha1_pb2 as messages
from gpurun.kubernetes.protocols import dra_health_v1alpha1_pb2_grpc as services

#: Seconds between two reports while nothing changes, and after which the kubelet is not to believe the last one any more.
_EVERY_S, _BELIEVED_S = 15.0, 60


class DeviceHealth(services.DRAResourceHealthServicer):
    """What is known of the devices of the pool *pool*: :meth:`tell` by the driver, the rest by the kubelet's threads."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._changed = threading.Condition()
        self._version, self._stopped = 0, False
        self._problems: dict[str, str] = {}

    def tell(self, problems: Mapping[str, str]) -> None:
        """The devices by name, with what is wrong with each (empty: nothing); one that is not named any more is gone."""
        with self._changed:
            now = dict.fromkeys(self._problems, "it is gone") | dict(problems)
            if now != self._problems:
                self._problems = now
                self._version += 1
                self._changed.notify_all()

    def open(self) -> None:
        """Let the kubelet watch."""
        with self._changed:
            self._stopped = False

    def stop(self) -> None:
        """End all watches: a socket is to be closed."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def NodeWatchResources(
        self, request: messages.NodeWatchResourcesRequest, context: Any
    ) -> Iterator[messages.NodeWatchResourcesResponse]:
        """All devices now, whenever one changes, and every few seconds, until the kubelet goes or the socket is closed."""
        context.add_callback(self._wake)
        seen = 0  # nothing is said before the first look
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopped or not context.is_active() or self._version != seen,  # noqa: B023
                    _EVERY_S,
                )
                if self._stopped or not context.is_active():
                    return
                seen, problems = self._version, self._problems
            if seen:
                yield self._report(problems)

    def _report(self, problems: Mapping[str, str]) -> messages.NodeWatchResourcesResponse:
        answer = messages.NodeWatchResourcesResponse()
        for name, problem in sorted(problems.items()):
            answer.devices.add(
                device=messages.DeviceIdentifier(pool_name=self._pool, device_name=name),
                health=messages.UNHEALTHY if problem else messages.HEALTHY,
                last_updated_time=int(time.time()),
                health_check_timeout_seconds=_BELIEVED_S,
                message=problem,
            )
        return answer

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
