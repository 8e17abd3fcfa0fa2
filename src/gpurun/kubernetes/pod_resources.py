"""Which container of which pod has which GPU, as the kubelet's podresources API says."""

from __future__ import annotations

import os

import grpc

from gpurun.errors import GpurunError
from gpurun.gpu.vendors import VENDORS
from gpurun.kubernetes.kubelet import KUBELET_DIR, TIMEOUT_S, channel
from gpurun.kubernetes.makers import NVIDIA
from gpurun.kubernetes.protocols import podresources_pb2 as messages
from gpurun.kubernetes.protocols import podresources_pb2_grpc as services
from gpurun.record import Record

SOCKET = f"{KUBELET_DIR}/pod-resources/kubelet.sock"
#: The driver of dynamic resource allocation → the maker.
_DRIVERS = {"gpu.nvidia.com": NVIDIA} | {row.driver: row.name for row in VENDORS if row.driver}


class Owner(Record):
    """A container of a pod that has a device.  *device* is a UUID, or of dynamic resource allocation the device's name.

    *vendor* is the maker's name.  *more* is what the API server knows of the pod (name, value), where it has been asked.
    """

    device: str
    namespace: str
    pod: str
    container: str
    more: tuple[tuple[str, str], ...] = ()
    vendor: str = NVIDIA


def owners(path: str = SOCKET) -> tuple[Owner, ...]:
    """Which containers have GPUs of this node; none where there is no kubelet.  Raises :class:`GpurunError`."""
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
                (vendor, _plain(vendor, identity))
                for devices in container.devices
                for vendor in _vendors_of(devices.resource_name)
                for identity in devices.device_ids
            ]
            names += [
                (_DRIVERS[resource.driver_name], resource.device_name)
                for claim in container.dynamic_resources
                for resource in claim.claim_resources
                if resource.driver_name in _DRIVERS
            ]
            found += [
                Owner(name, pod.namespace, pod.name, container.name, vendor=vendor) for vendor, name in dict.fromkeys(names)
            ]
    return tuple(found)


def _vendors_of(resource: str) -> list[str]:
    """The maker whose resource it is; none for any other resource."""
    return [row.name for row in VENDORS if resource.startswith(row.resource)][:1]


def _plain(vendor: str, identity: str) -> str:
    """The device of a share of it: ``GPU-1::0``, and ``card1-0`` of a plugin that is not ours."""
    name = identity.partition("::")[0]
    base, dash, share = name.rpartition("-")
    return base if vendor != NVIDIA and dash and base.startswith("card") and share.isdigit() else name
