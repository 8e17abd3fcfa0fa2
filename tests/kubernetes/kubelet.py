"""The tests' own kubelet: the real protocols on real sockets, and of the kubelet's work what a device plugin can notice.

Like the kubelet it removes all sockets of its directory when it starts, listens to each plugin, gives out only healthy
devices that nobody has, prefers what the plugin prefers, and remembers over a restart what it has given out.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from gpurun.kubernetes.protocols import deviceplugin_pb2 as messages
from gpurun.kubernetes.protocols import deviceplugin_pb2_grpc as services

WAIT_S = 60.0


class NotEnough(Exception):
    """No pod can have this now; it would stay Pending."""


class Endpoint:
    """One plugin as the kubelet knows it: its resource, its socket, the list that it sends."""

    def __init__(self, resource: str, path: str, changed: threading.Condition) -> None:
        self.resource, self._changed = resource, changed
        self.channel = grpc.insecure_channel(f"unix:{path}")
        self.stub = services.DevicePluginStub(self.channel)
        self.options: messages.DevicePluginOptions | None = None
        self.lists: list[dict[str, messages.Device]] = []
        self.gone = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def devices(self) -> dict[str, messages.Device]:
        return self.lists[-1] if self.lists and not self.gone else {}

    def _listen(self) -> None:
        try:
            self.options = self.stub.GetDevicePluginOptions(messages.Empty(), timeout=WAIT_S)
            for answer in self.stub.ListAndWatch(messages.Empty()):
                with self._changed:
                    self.lists.append({device.ID: device for device in answer.devices})
                    self._changed.notify_all()
        except (grpc.RpcError, ValueError):  # the plugin has gone, or we have
            pass
        with self._changed:
            self.gone = True
            self._changed.notify_all()

    def close(self) -> None:
        self.channel.close()
        self._thread.join(WAIT_S)


class Kubelet(services.RegistrationServicer):
    """A kubelet whose --root-dir is *directory*."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plugins = directory / "device-plugins"
        self.plugins.mkdir(parents=True, exist_ok=True)
        self.changed = threading.Condition()
        self.endpoints: dict[str, Endpoint] = {}
        self.registrations: list[messages.RegisterRequest] = []
        self.given: dict[str, tuple[str, ...]] = {}  # (resource, device) of each container, as "resource device"
        self._server: Any = None
        self.refuse = ""  # why registrations are refused, if they are
        self.refused = 0  # how many were

    def start(self) -> None:
        for path in self.plugins.iterdir():
            path.unlink()
        self._threads = ThreadPoolExecutor(8)
        self._server = grpc.server(self._threads)
        services.add_RegistrationServicer_to_server(self, self._server)
        assert self._server.add_insecure_port(f"unix:{self.plugins}/kubelet.sock")
        self._server.start()

    def stop(self) -> None:
        """End as a killed kubelet does: its sockets stay until the next one removes them."""
        self._server.stop(None).wait()
        self._threads.shutdown()
        with self.changed:
            ending, self.endpoints = list(self.endpoints.values()), {}
        for endpoint in ending:
            endpoint.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def Register(self, request: messages.RegisterRequest, context: Any) -> messages.Empty:
        if self.refuse:
            self.refused += 1
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuse)
        if request.version != "v1beta1":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"version {request.version}")
        path = f"{self.plugins}/{request.endpoint}"
        if not os.path.exists(path):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{path} is not there")
        with self.changed:
            self.registrations.append(request)
            old = self.endpoints.pop(request.resource_name, None)
            self.endpoints[request.resource_name] = Endpoint(request.resource_name, path, self.changed)
            self.changed.notify_all()
        if old is not None:
            old.close()
        return messages.Empty()

    def wait(self, what: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
        """Wait until *what* is true, and return it."""
        with self.changed:
            deadline = time.monotonic() + timeout_s
            while not (answer := what()):
                left = deadline - time.monotonic()
                assert left > 0, f"not within {timeout_s:g} s; resources: {self.health()}"
                self.changed.wait(min(left, 0.2))
            return answer

    def health(self) -> dict[str, dict[str, str]]:
        """Resource → device → its health."""
        with self.changed:
            return {
                name: {device.ID: device.health for device in endpoint.devices.values()}
                for name, endpoint in self.endpoints.items()
                if not endpoint.gone
            }

    def capacity(self, resource: str) -> int:
        return len(self.health().get(resource, {}))

    def run_container(self, name: str, resource: str, count: int = 1) -> messages.ContainerAllocateResponse:
        """Give *count* devices to the container *name* as the kubelet does; raises :class:`NotEnough` and RpcError."""
        with self.changed:
            endpoint = self.endpoints.get(resource)
            if endpoint is None or endpoint.gone:
                raise NotEnough(f"{resource} is not there")
            taken = {key for keys in self.given.values() for key in keys}
            free = [d.ID for d in endpoint.devices.values() if d.health == "Healthy" and f"{resource} {d.ID}" not in taken]
            if len(free) < count:
                raise NotEnough(f"{resource}: {len(free)} of {count}")
            request = messages.PreferredAllocationRequest()
            request.container_requests.add(available_deviceIDs=free, allocation_size=count)
            answer = endpoint.stub.GetPreferredAllocation(request, timeout=WAIT_S)
            chosen = list(answer.container_responses[0].deviceIDs)
            assert len(chosen) == count and set(chosen) <= set(free), chosen
            self.given[name] = tuple(f"{resource} {identity}" for identity in chosen)
        try:
            return self.allocate(endpoint, chosen)
        except BaseException:
            self.end_container(name)
            raise

    @staticmethod
    def allocate(endpoint: Endpoint, ids: list[str]) -> messages.ContainerAllocateResponse:
        request = messages.AllocateRequest()
        request.container_requests.add(devices_ids=ids)
        answer = endpoint.stub.Allocate(request, timeout=WAIT_S)
        assert len(answer.container_responses) == 1
        return answer.container_responses[0]

    def end_container(self, name: str) -> None:
        with self.changed:
            self.given.pop(name, None)
