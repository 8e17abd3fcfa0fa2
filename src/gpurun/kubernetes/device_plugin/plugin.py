"""One resource of the device plugin: a gRPC server on a socket of its own, and its registration with the kubelet."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc

from gpurun import log
from gpurun.errors import GpurunError
from gpurun.gpu.device import GpuDevice
from gpurun.kubernetes.config import PluginConfig
from gpurun.kubernetes.device_plugin.preferred import Nearness, preferred, preferred_units
from gpurun.kubernetes.device_plugin.resources import Offer
from gpurun.kubernetes.device_plugin.response import NVIDIA, Allocation, MpsPlace, Naming, allocation
from gpurun.kubernetes.kubelet import TIMEOUT_S, channel, device_plugins, identity, server
from gpurun.kubernetes.protocols import deviceplugin_pb2 as messages
from gpurun.kubernetes.protocols import deviceplugin_pb2_grpc as services
from gpurun.record import Record

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
API_VERSION = "v1beta1"
#: Calls at once: ListAndWatch holds a thread for each kubelet that listens, the others are short.
_WORKERS = 32


class Offering(Record):
    """All that answers need, exchanged as a whole: what is offered, and what is not well (device id → why).

    *nodes* are the driver's control nodes that the host has, *dev* the directory of the host with ``dev/``.  *units* are
    the devices by their ids where links between them, and not *near*, say which are best together.
    """

    offer: Offer
    config: PluginConfig
    near: Nearness
    unhealthy: dict[str, str]
    mps: MpsPlace | None = None
    nodes: tuple[str, ...] = ()
    dev: str = ""
    naming: Naming = NVIDIA
    units: Mapping[str, GpuDevice] = {}

    def preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> tuple[str, ...]:
        """*size* ids out of *available*, those of *must* among them.  Raises :class:`GpurunError`."""
        if self.units and self.offer.replicas == 1:
            return preferred_units(self.offer, self.units, available, must, size)
        packed = self.config.allocation_policy == "packed"
        return preferred(self.offer, self.near, available, must, size, packed)

    def allocate(self, ids: Sequence[str]) -> Allocation:
        """The answer for a container that gets the devices *ids*.  Raises :class:`GpurunError`."""
        return allocation(self.offer, self.config, ids, self.nodes, self.mps, self.dev, self.naming)


class Plugin(services.DevicePluginServicer):
    """Serves one resource.  *prepare* is called with an answer before it is given: what it names must be there by then.

    All methods may be called from any thread.
    """

    def __init__(self, offering: Offering, kubelet_dir: str, prepare: Callable[[], None]) -> None:
        self.name = offering.offer.name
        self._directory = device_plugins(kubelet_dir)
        self.endpoint = f"gpurun-{self.name.replace('/', '-')}.sock"
        self._prepare = prepare
        self._changed = threading.Condition()
        self._offering = offering
        self._version = 0
        self._stopped = True
        self._server: grpc.Server | None = None
        self._socket = (0, 0, 0)

    # What the manager calls.

    def update(self, offering: Offering) -> None:
        """Answer as *offering* says from now on; listeners are notified if the list of devices has changed."""
        with self._changed:
            same = _listed(offering) == _listed(self._offering)
            self._offering = offering
            if not same:
                self._version += 1
                self._changed.notify_all()

    def serve(self) -> None:
        """Listen on the socket, anew if it has been removed.  Raises :class:`GpurunError`."""
        if self._server is not None and identity(self._path) == self._socket != (0, 0, 0):
            return
        # gRPC removes the socket when a server ends, by its name: the old one must be gone before the new one comes.
        self.stop()
        made = server(self._path, _WORKERS)
        services.add_DevicePluginServicer_to_server(self, made)
        with self._changed:
            self._stopped = False
        made.start()
        self._server, self._socket = made, identity(self._path)

    @property
    def served(self) -> bool:
        """Whether it listens, on the socket that is there."""
        return self._server is not None and identity(self._path) == self._socket

    def register(self) -> None:
        """Tell the kubelet about the socket.  Raises :class:`GpurunError`."""
        request = messages.RegisterRequest(
            version=API_VERSION, endpoint=self.endpoint, resource_name=self.name, options=self._options()
        )
        kubelet = f"{self._directory}/kubelet.sock"
        with channel(kubelet) as open_channel:
            try:
                services.RegistrationStub(open_channel).Register(request, timeout=TIMEOUT_S)
            except grpc.RpcError as e:
                raise GpurunError(f"register {self.name} at {kubelet}: {_said(e)}") from None
        log.info(f"{self.name}: registered with the kubelet, {len(self._offering.offer.devices)} devices")

    def stop(self) -> None:
        """Close the socket and end all calls."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._server is not None:
            self._server.stop(grace=1).wait()
            self._server = None
            if identity(self._path) == self._socket:
                os.unlink(self._path)

    # What the kubelet calls.

    def GetDevicePluginOptions(self, request: messages.Empty, context: Any) -> messages.DevicePluginOptions:
        """What the kubelet may ask for, besides Allocate (deviceplugin v1beta1)."""
        return self._options()

    def ListAndWatch(self, request: messages.Empty, context: Any) -> Iterator[messages.ListAndWatchResponse]:
        """The list now, and again whenever it changes, until the kubelet goes or the socket is closed."""
        context.add_callback(self._wake)
        seen = -1
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._version != seen or not context.is_active())  # noqa: B023
                if self._stopped or not context.is_active():
                    return
                seen, offering = self._version, self._offering
            yield messages.ListAndWatchResponse(devices=devices_of(offering))

    def GetPreferredAllocation(
        self, request: messages.PreferredAllocationRequest, context: Any
    ) -> messages.PreferredAllocationResponse:
        """Which of the free devices a container had best get (deviceplugin v1beta1)."""
        now = self._offering
        answer = messages.PreferredAllocationResponse()
        for one in request.container_requests:
            try:
                ids = now.preferred(one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size)
            except GpurunError as e:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))
            answer.container_responses.add(deviceIDs=ids)
        return answer

    def Allocate(self, request: messages.AllocateRequest, context: Any) -> messages.AllocateResponse:
        """What each container needs for its devices; a wrong request ends the call with INVALID_ARGUMENT."""
        now = self._offering
        answer = messages.AllocateResponse()
        for one in request.container_requests:
            try:
                found = now.allocate(one.devices_ids)
            except GpurunError as e:
                log.warning(str(e))
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))
            answer.container_responses.append(to_message(found))
        try:
            self._prepare()
        except GpurunError as e:
            log.warning(str(e))
            context.abort(grpc.StatusCode.UNAVAILABLE, str(e))
        return answer

    def PreStartContainer(
        self, request: messages.PreStartContainerRequest, context: Any
    ) -> messages.PreStartContainerResponse:
        """Nothing has to be done before a start; the options say so, too."""
        return messages.PreStartContainerResponse()

    @property
    def _path(self) -> str:
        return f"{self._directory}/{self.endpoint}"

    def _options(self) -> messages.DevicePluginOptions:
        return messages.DevicePluginOptions(get_preferred_allocation_available=True)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _listed(offering: Offering) -> tuple[Any, ...]:
    return tuple([(d.id, d.numa, d.id in offering.unhealthy) for d in offering.offer.devices])


def devices_of(offering: Offering) -> list[messages.Device]:
    """The list that the kubelet gets; a device's NUMA node is for its topology manager."""
    made = []
    for device in offering.offer.devices:
        health = UNHEALTHY if device.id in offering.unhealthy else HEALTHY
        message = messages.Device(ID=device.id, health=health)
        if device.numa >= 0:
            message.topology.nodes.add(ID=device.numa)
        made.append(message)
    return made


def to_message(found: Allocation) -> messages.ContainerAllocateResponse:
    """The answer for one container as the protocol has it."""
    return messages.ContainerAllocateResponse(
        envs=dict(found.env),
        mounts=[messages.Mount(host_path=host, container_path=inside) for host, inside in found.mounts],
        devices=[messages.DeviceSpec(host_path=h, container_path=c, permissions="rw") for h, c in found.devices],
        annotations=dict(found.annotations),
        cdi_devices=[messages.CDIDevice(name=name) for name in found.cdi],
    )


def _said(error: grpc.RpcError) -> str:
    details = getattr(error, "details", None)
    return str(details() if details is not None else error)
