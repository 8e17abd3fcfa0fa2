"""What the kubelet asks a DRA driver: who it is, and to prepare and unprepare claims; on two sockets, in two versions."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import grpc

from gpurun import log
from gpurun.errors import GpurunError
from gpurun.kubernetes.api import RESOURCE_GROUP, Api, ApiError
from gpurun.kubernetes.dra.checkpoint import PreparedClaim
from gpurun.kubernetes.dra.claim import Claim, read_claim
from gpurun.kubernetes.dra.health import DeviceHealth
from gpurun.kubernetes.dra.prepare import Preparer, StillPreparedError
from gpurun.kubernetes.dra.slices import DRIVER
from gpurun.kubernetes.kubelet import identity, server
from gpurun.kubernetes.protocols import dra_health_v1alpha1_pb2_grpc as health_services
from gpurun.kubernetes.protocols import dra_v1_pb2 as v1
from gpurun.kubernetes.protocols import dra_v1_pb2_grpc as v1_services
from gpurun.kubernetes.protocols import dra_v1beta1_pb2 as v1beta1
from gpurun.kubernetes.protocols import dra_v1beta1_pb2_grpc as v1beta1_services
from gpurun.kubernetes.protocols import pluginregistration_pb2 as registration
from gpurun.kubernetes.protocols import pluginregistration_pb2_grpc as registration_services

#: Calls at once; a kubelet's watch of the devices' health is one all the time.
_WORKERS = 20
#: What the kubelet may speak with us, as its registration names it.
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")


class Claims:
    """Prepares what the API server says of claims; *pool* is the name of this node's pool of *driver*."""

    def __init__(self, api: Api, version: str, pool: str, preparer: Preparer, driver: str = DRIVER) -> None:
        self._api, self._version, self._pool, self._preparer, self._driver = api, version, pool, preparer, driver

    def prepare(self, request: Any, response: Any) -> Any:
        """Fill *response* (of either version) for each claim of *request*; what goes wrong with one is its own error."""
        for asked in request.claims:
            answer = response.claims[asked.uid]
            try:
                done = self._prepared(
                    read_claim(self._get(asked.namespace, asked.name, asked.uid), self._pool, self._driver)
                )
            except GpurunError as e:
                log.warning(str(e))
                answer.error = str(e)
                continue
            for device in done.devices:
                made = answer.devices.add(
                    request_names=[device.request],
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi,
                )
                if device.share and hasattr(made, "share_id"):
                    made.share_id = device.share
        return response

    def unprepare(self, request: Any, response: Any) -> Any:
        """Take each claim of *request* back."""
        for asked in request.claims:
            answer = response.claims[asked.uid]
            answer.error = ""
            try:
                self._preparer.unprepare(asked.uid)
            except GpurunError as e:
                log.warning(str(e))
                answer.error = str(e)
        return response

    def clean(self) -> None:
        """Take back the claims that the API server does not have any more, or has for another pod.

        Raises :class:`ApiError` when it cannot be asked: then nothing more is taken back.
        """
        for claim in self._preparer.claims:
            try:
                self._is_gone(claim)
            except ApiError:
                raise
            except GpurunError as e:
                log.warning(str(e))

    def _prepared(self, claim: Claim) -> PreparedClaim:
        """*claim* made ready; of the claims that have its devices, those that are gone are taken back first."""
        while True:
            try:
                return self._preparer.prepare(claim)
            except StillPreparedError as e:
                if not self._is_gone(e.other):
                    raise

    def _is_gone(self, claim: PreparedClaim) -> bool:
        """Whether the API server does not have *claim* any more; then it is taken back.  Raises :class:`GpurunError`."""
        try:
            if read_claim(self._get(claim.namespace, claim.name, claim.uid), self._pool, self._driver).devices:
                return False
        except ApiError as e:
            if e.status != 404:
                raise
        log.warning(f"claim {claim.namespace}/{claim.name} no longer exists: what was prepared for it is removed")
        self._preparer.unprepare(claim.uid)
        return True

    def _get(self, namespace: str, name: str, uid: str) -> dict[str, Any]:
        found = self._api.get_namespaced(RESOURCE_GROUP, self._version, "resourceclaims", namespace, name)
        if found["metadata"].get("uid") != uid:
            raise ApiError(f"claim {namespace}/{name}", 404, f"has another UID now, not {uid}")
        return found


class _V1(v1_services.DRAPluginServicer):
    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    def NodePrepareResources(self, request: v1.NodePrepareResourcesRequest, context: Any) -> v1.NodePrepareResourcesResponse:
        answer: v1.NodePrepareResourcesResponse = self._claims.prepare(request, v1.NodePrepareResourcesResponse())
        return answer

    def NodeUnprepareResources(
        self, request: v1.NodeUnprepareResourcesRequest, context: Any
    ) -> v1.NodeUnprepareResourcesResponse:
        answer: v1.NodeUnprepareResourcesResponse = self._claims.unprepare(request, v1.NodeUnprepareResourcesResponse())
        return answer


class _V1Beta1(v1beta1_services.DRAPluginServicer):
    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    def NodePrepareResources(
        self, request: v1beta1.NodePrepareResourcesRequest, context: Any
    ) -> v1beta1.NodePrepareResourcesResponse:
        answer: v1beta1.NodePrepareResourcesResponse = self._claims.prepare(request, v1beta1.NodePrepareResourcesResponse())
        return answer

    def NodeUnprepareResources(
        self, request: v1beta1.NodeUnprepareResourcesRequest, context: Any
    ) -> v1beta1.NodeUnprepareResourcesResponse:
        answer: v1beta1.NodeUnprepareResourcesResponse = self._claims.unprepare(
            request, v1beta1.NodeUnprepareResourcesResponse()
        )
        return answer


class _Registration(registration_services.RegistrationServicer):
    def __init__(self, driver: str, endpoint: str, on_registered: Callable[[bool], None]) -> None:
        self._driver, self._endpoint, self._on_registered = driver, endpoint, on_registered

    def GetInfo(self, request: registration.InfoRequest, context: Any) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DRAPlugin", name=self._driver, endpoint=self._endpoint, supported_versions=VERSIONS
        )

    def NotifyRegistrationStatus(
        self, request: registration.RegistrationStatus, context: Any
    ) -> registration.RegistrationStatusResponse:
        self._on_registered(bool(request.plugin_registered))
        if request.plugin_registered:
            log.info(f"{self._driver}: registered with the kubelet")
        else:
            log.warning(f"{self._driver}: the kubelet refuses the registration: {request.error}")
        return registration.RegistrationStatusResponse()


class Sockets:
    """The two sockets of *driver* below the kubelet's directory; the kubelet finds the one in plugins_registry by itself."""

    def __init__(self, kubelet_dir: str, claims: Claims, health: DeviceHealth, driver: str = DRIVER) -> None:
        self._driver = driver
        self.directory = f"{kubelet_dir}/plugins/{driver}"
        self._registry = f"{kubelet_dir}/plugins_registry"
        self._paths = f"{self.directory}/dra.sock", f"{self._registry}/{driver}-reg.sock"
        self._claims, self._health = claims, health
        self._servers: list[grpc.Server] = []
        self._seen: list[tuple[int, int, int]] = []
        #: Whether the kubelet has taken the driver, since the sockets that are there were made.
        self.registered = False

    def _tell(self, registered: bool) -> None:
        self.registered = registered

    def serve(self) -> None:
        """Listen, anew where a socket has been removed.  Raises :class:`GpurunError`."""
        if self._servers and [identity(path) for path in self._paths] == self._seen:
            return
        self.stop()
        try:
            for directory in (self.directory, self._registry):
                os.makedirs(directory, 0o750, exist_ok=True)
        except OSError as e:
            raise GpurunError(f"{e.filename}: {os.strerror(e.errno or 0)}") from None
        plugin = server(self._paths[0], _WORKERS)
        v1_services.add_DRAPluginServicer_to_server(_V1(self._claims), plugin)
        v1beta1_services.add_DRAPluginServicer_to_server(_V1Beta1(self._claims), plugin)
        health_services.add_DRAResourceHealthServicer_to_server(self._health, plugin)
        self._health.open()
        self._servers.append(plugin)
        plugin.start()
        # Last: when the kubelet sees this one, the other must answer.
        registry = server(self._paths[1], 4)
        registration_services.add_RegistrationServicer_to_server(
            _Registration(self._driver, self._paths[0], self._tell), registry
        )
        self._servers.append(registry)
        registry.start()
        self._seen = [identity(path) for path in self._paths]

    def stop(self) -> None:
        """Close both; the one that the kubelet watches first."""
        self.registered = False
        self._health.stop()
        for one in reversed(self._servers):
            one.stop(grace=5).wait()
        self._servers.clear()
        for path, seen in zip(self._paths, self._seen, strict=False):
            if identity(path) == seen != (0, 0, 0):
                os.unlink(path)
        self._seen = []
