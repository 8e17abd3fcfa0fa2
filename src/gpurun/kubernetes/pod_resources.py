"""Which container of which pod has which GPU, as the kubelet's podresources API says."""

from __future__ import annotations

import os

import grpc

from gpurun.errors import GpurunError
from gpurun.kubernetes.config import PREFIX
from gpurun.kubernetes.kubelet import KUBELET_DIR, TIMEOUT_S, channel
from gpurun.kubernetes.protocols import podresources_pb2 as messages
from gpurun.kubernetes.protocols import podresources_pb2_grpc as services
from gpurun.record import Record

SOCKET = f"{KUBELET_DIR}/pod-resources/kubelet.sock"
_DRIVER = "gpu.nvidia.com"


class Owner(Record):
    """A container of a pod that has a device.  *device* is a UUID, or of dynamic resource allocation the device's name.

    *more* is what the API server knows of the pod (name, value), where somebody has asked it.
    """

    device: str
    namespace: str
    pod: str
    container: str
    more: tuple[tuple[str, str], ...] = ()


def owners(path: str = SOCKET) -> tuple[Owner, ...]:
    """Who has NVIDIA's devices on this node; nobody where there is no kubelet.  Raises :class:`GpurunError`."""
    if not os.path.exists(path):
        return ()
    with channel(path) as open_channel:
        try:
            answer = services.PodResourcesListerStub(open_channel).List(
                messages.ListPodResourcesRequest(), timeout=TIMEOUT_S
            )
        except grpc.RpcError as e:
            raise GpurunError(f"{path}: the kubelet does not say which pod has which GPU: {e}") from None
    return owners_in(answer)


def owners_in(answer: messages.ListPodResourcesResponse) -> tuple[Owner, ...]:
    """The owners in the kubelet's *answer*; a device that is shared is there for each of them."""
    found = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            names = [
                identity.partition("::")[0]
                for devices in container.devices
                if devices.resource_name.startswith(f"{PREFIX}/")
                for identity in devices.device_ids
            ]
            names += [
                resource.device_name
                for claim in container.dynamic_resources
                for resource in claim.claim_resources
                if resource.driver_name == _DRIVER
            ]
            found += [Owner(name, pod.namespace, pod.name, container.name) for name in dict.fromkeys(names)]
    return tuple(found)
