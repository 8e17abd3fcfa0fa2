"""A node of a cluster for the DRA driver's tests: a simulated driver, an API server, and a kubelet's side of the sockets.

With ``KUBECONFIG`` in the environment the API server is the one that it names (and ``NODE_NAME`` the node that is played),
without it is the tests' own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
import uuid as uuids
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.gpu.nvidia.mps.node_service import NodeProgram, end_all
from gpurun.kubernetes.api import Api, connect
from gpurun.kubernetes.dra.drivers import DraDrivers
from gpurun.kubernetes.dra.service import DraDriver, DraPlaces
from gpurun.kubernetes.dra.slices import DRIVER
from gpurun.kubernetes.protocols import dra_v1_pb2 as v1
from gpurun.kubernetes.protocols import dra_v1_pb2_grpc as v1_services
from gpurun.kubernetes.protocols import dra_v1beta1_pb2 as v1beta1
from gpurun.kubernetes.protocols import dra_v1beta1_pb2_grpc as v1beta1_services
from gpurun.kubernetes.protocols import pluginregistration_pb2 as registration
from gpurun.kubernetes.protocols import pluginregistration_pb2_grpc as registration_services
from gpurun.kubernetes.specs import NodeHost
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.nodes import CountedProbes
from tests.simdriver import Options, SimulatedDriver, make, minor

REAL = bool(os.environ.get("KUBECONFIG"))
NAMESPACE = "default"
#: Minors run against the order of the bus ids, and devices are named by their minors.
FIRST, SECOND = "gpu-1", "gpu-0"
own_server = pytest.mark.skipif(REAL, reason="what a real API server would not do, or nobody allocates there")


class Cluster:
    """What a test needs of it; *server* is None when the API server is a real one."""

    def __init__(self, directory: Path, driver: SimulatedDriver, server: ApiServer | None) -> None:
        self.directory, self.driver, self.server = directory, driver, server
        self.kubelet_dir, self.cdi_dir = directory / "kubelet", directory / "cdi"
        self.node_name = os.environ.get("NODE_NAME", "node-1")
        kubeconfig = str(server.kubeconfig(directory / "kubeconfig")) if server else ""
        self.kubeconfig = kubeconfig or os.environ["KUBECONFIG"]
        self.api: Api = connect(self.kubeconfig)
        self.dra: DraDriver | DraDrivers | None = None
        self.driver_name = DRIVER
        self.probes = CountedProbes()
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def start(
        self, interval_s: float = 0.2, programs: str = "", driver_root: str = "/", makers: tuple[str, ...] = (),
        root: str = "", memory_shares: bool = False,
    ) -> None:  # fmt: skip
        """Start the driver, and wait until its sockets are there; the drivers of all *makers* in one, if there are any.

        *root* is where the host's root is mounted, when it runs in a pod.
        """
        host = NodeHost(Roots(driver_root, str(self.driver.path)), root)
        directories = str(self.kubelet_dir), str(self.cdi_dir), str(self.directory / "mps")
        places = DraPlaces(*directories, programs, interval_s, memory_shares)
        driver: DraDriver | DraDrivers
        if makers:
            driver = DraDrivers(self.api, self.node_name, host, places, self.driver.env, self.probes, makers)
        else:
            driver = DraDriver(self.api, self.node_name, host, places, self.driver.env, self.probes)
        self.dra = driver

        def run() -> None:
            try:
                driver.run()
            except BaseException as e:  # the test asks for it
                self.failure = e

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self.until(lambda: self.registry.exists() or self.failure)
        assert self.failure is None, self.failure

    def stop(self) -> None:
        if self.dra is not None and self._thread is not None:
            self.dra.stop()
            self._thread.join(30)
            assert not self._thread.is_alive(), "the driver does not end"
        self.dra = self._thread = None

    def wait_for_looks(self, count: int) -> None:
        """Return when the driver's loop has gone round *count* times, each begun after this call."""
        after = self.probes.rounds + 1 + count
        self.until(lambda: self.probes.rounds >= after)

    @property
    def registry(self) -> Path:
        return self.kubelet_dir / f"plugins_registry/{self.driver_name}-reg.sock"

    @property
    def checkpoint(self) -> Path:
        return self.kubelet_dir / f"plugins/{self.driver_name}/checkpoint.json"

    def device_node(self, index: int) -> Path:
        return self.driver.path / f"dev/nvidia{minor(index, self.driver.options.gpus)}"

    @staticmethod
    def until(what: Callable[[], Any], timeout_s: float = 60.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (answer := what()):
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
            time.sleep(0.02)
        return answer

    # The API server's side.

    def slices(self) -> list[dict[str, Any]]:
        """The specifications of this node's slices, by name."""
        version = self.api.resource_version_of_group()
        found, _ = self.api.list("resource.k8s.io", version, "resourceslices")
        mine = [s for s in found if s["spec"].get("nodeName") == self.node_name and s["spec"]["driver"] == self.driver_name]
        return [s["spec"] for s in sorted(mine, key=lambda s: str(s["metadata"]["name"]))]

    def remove_slices(self) -> None:
        """Leave none of this node behind: the next test begins with generation 1."""
        version = self.api.resource_version_of_group()
        for one in self.api.list("resource.k8s.io", version, "resourceslices")[0]:
            if one["spec"].get("nodeName") == self.node_name and one["spec"]["driver"] == DRIVER:
                self.api.delete("resource.k8s.io", version, "resourceslices", one["metadata"]["name"])

    def published(self) -> list[str]:
        """The names of all devices that claims get: without taints."""
        found = [device for spec in self.slices() for device in spec.get("devices") or ()]
        return [str(device["name"]) for device in found if not device.get("taints")]

    def allocate(self, name: str, *devices: str, config: list[dict[str, Any]] | None = None, **more: Any) -> v1.Claim:
        """Make a claim that a scheduler has allocated *devices* to; only on our own server."""
        assert self.server is not None
        results = [
            {"request": f"r{i}", "driver": self.driver_name, "pool": self.node_name, "device": device} | more
            for i, device in enumerate(devices)
        ]
        body = {
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": str(uuids.uuid4())}, "spec": {},
            "status": {"allocation": {"devices": {"results": results, "config": config or []}}},
        }  # fmt: skip
        made = self.server.put("resourceclaims", body)
        return v1.Claim(namespace=NAMESPACE, uid=made["metadata"]["uid"], name=name)

    # The kubelet's side.

    def info(self) -> registration.PluginInfo:
        with grpc.insecure_channel(f"unix:{self.registry}") as channel:
            stub = registration_services.RegistrationStub(channel)
            info = stub.GetInfo(registration.InfoRequest(), timeout=60)
            stub.NotifyRegistrationStatus(registration.RegistrationStatus(plugin_registered=True), timeout=60)
            return info

    def prepare(self, *claims: v1.Claim) -> dict[str, v1.NodePrepareResourceResponse]:
        with grpc.insecure_channel(f"unix:{self.info().endpoint}") as channel:
            stub = v1_services.DRAPluginStub(channel)
            return dict(stub.NodePrepareResources(v1.NodePrepareResourcesRequest(claims=claims), timeout=60).claims)

    def unprepare(self, *claims: v1.Claim) -> dict[str, v1.NodeUnprepareResourceResponse]:
        with grpc.insecure_channel(f"unix:{self.info().endpoint}") as channel:
            stub = v1_services.DRAPluginStub(channel)
            return dict(stub.NodeUnprepareResources(v1.NodeUnprepareResourcesRequest(claims=claims), timeout=60).claims)

    def prepare_v1beta1(self, claim: v1.Claim) -> v1beta1.NodePrepareResourceResponse:
        asked = v1beta1.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)
        with grpc.insecure_channel(f"unix:{self.info().endpoint}") as channel:
            stub = v1beta1_services.DRAPluginStub(channel)
            answer = stub.NodePrepareResources(v1beta1.NodePrepareResourcesRequest(claims=[asked]), timeout=60)
            return answer.claims[claim.uid]


@contextmanager
def cluster(
    options: Options | None = None, server: ApiServer | None = None, change: Callable[[Path], object] | None = None
) -> Iterator[Cluster]:
    """A cluster with one node; the driver is not started yet."""
    directory = Path(tempfile.mkdtemp(prefix="dra-"))  # the path of a Unix socket has at most 107 bytes
    own = server or (None if REAL else ApiServer())
    try:
        driver = make(directory / "host", options or Options(gpus=2))
        if change is not None:
            change(driver.path)
        if own is not None:
            own.put("nodes", {"metadata": {"name": "node-1", "labels": {}}})
        made = Cluster(directory, driver, own)
        if own is None:
            made.remove_slices()  # another driver's that has gone: the kubelet takes half a minute for them
        try:
            yield made
        finally:
            made.stop()
            assert end_all(f"{directory}/mps", NodeProgram()) == []
            if own is None:
                made.remove_slices()
    finally:
        if own is not None:
            own.stop()
        shutil.rmtree(directory)
