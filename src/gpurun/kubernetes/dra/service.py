"""The DRA driver of a node: looks at the GPUs, publishes them, serves the kubelet, cleans up after claims that are gone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping

from gpurun import log
from gpurun.errors import GpurunError
from gpurun.kubernetes.api import Api, ApiError
from gpurun.kubernetes.dra.backend import Backend, NvidiaBackend
from gpurun.kubernetes.dra.checkpoint import Checkpoint
from gpurun.kubernetes.dra.driver import Claims, Sockets
from gpurun.kubernetes.dra.health import DeviceHealth
from gpurun.kubernetes.dra.prepare import Preparer
from gpurun.kubernetes.dra.publish import Publisher
from gpurun.kubernetes.dra.slices import Allocatable
from gpurun.kubernetes.kubelet import KUBELET_DIR
from gpurun.kubernetes.pauses import Pauses
from gpurun.kubernetes.probes import Probes
from gpurun.kubernetes.specs import CDI_DIR, NodeHost
from gpurun.record import Record

#: Seconds between two searches for claims that are gone, at the most; half of it at the least, at random.
_CLEAN_S = 3600.0
#: Seconds between two looks at the MPS daemons of claims.
_DAEMONS_S = 5.0


class DraPlaces(Record):
    """Where the kubelet and the container engine look, where MPS daemons and NVIDIA's programs are (empty: PATH), and how
    often the GPUs are looked at (seconds); *memory_shares*: several claims may share a GPU's memory."""

    kubelet_dir: str = KUBELET_DIR
    cdi_dir: str = CDI_DIR
    mps_root: str = "/run/gpurun/mps"
    programs: str = ""
    interval_s: float = 10.0
    memory_shares: bool = False


def checkpoint_path(kubelet_dir: str, driver: str) -> str:
    """The file of what *driver* has prepared."""
    return f"{kubelet_dir}/plugins/{driver}/checkpoint.json"


class DraDriver:
    """The driver of the GPUs of one maker (*backend*, by default NVIDIA's): :meth:`run` until :meth:`stop`, which any thread
    may call.

    Raises :class:`GpurunError` when the API server cannot be asked, or the checkpoint cannot be read.
    """

    def __init__(
        self, api: Api, node_name: str, host: NodeHost, places: DraPlaces, env: Mapping[str, str],
        probes: Probes | None = None, backend: Backend | None = None,
    ) -> None:  # fmt: skip
        self._api, self._host, self._places = api, host, places
        self._stop, self._wake = threading.Event(), threading.Event()
        self._gpus = backend or NvidiaBackend(host, env, self._wake.set, places.memory_shares)
        self._driver = self._gpus.driver
        self._here: Mapping[str, Allocatable] = {}
        self._publisher = Publisher(api, node_name, self._driver)
        checkpoint = Checkpoint(checkpoint_path(places.kubelet_dir, self._driver))
        self._preparer = Preparer(
            checkpoint, host, places.cdi_dir, places.mps_root if self._gpus.shares else "", self._devices, env,
            places.programs, self._driver, self._gpus.spec,
        )  # fmt: skip
        self._claims = Claims(api, self._publisher.version, node_name, self._preparer, self._driver)
        self._device_health = DeviceHealth(node_name)
        self._sockets = Sockets(places.kubelet_dir, self._claims, self._device_health, self._driver)
        self._slices_changed = threading.Event()
        self._said: set[str] = set()
        self._probes = probes or Probes()

    def run(self) -> None:
        """Serve until :meth:`stop`."""
        self._preparer.start_again()
        self._gpus.start()
        arguments = (self._stop, self._look_again)
        threading.Thread(target=self._publisher.follow, args=arguments, name="slices", daemon=True).start()
        try:
            next_look = next_clean = next_daemons = 0.0
            pauses = Pauses()
            while not self._stop.is_set():
                problems: list[str] = []
                if time.monotonic() >= next_look or self._gpus.has_news() or self._slices_changed.is_set():
                    self._slices_changed.clear()
                    problems += self._run_step(self._look)
                    # What went wrong with the API server is tried again soon.
                    next_look = time.monotonic() + (
                        min(2.0, self._places.interval_s) if problems else self._places.interval_s
                    )
                problems += self._run_step(self._sockets.serve)
                if time.monotonic() >= next_daemons:
                    problems += self._run_step(self._preparer.keep_daemons)
                    next_daemons = time.monotonic() + min(_DAEMONS_S, self._places.interval_s)
                if time.monotonic() >= next_clean:
                    failed = self._run_step(self._claims.clean)
                    problems += failed
                    if not failed:
                        pauses.good()
                    next_clean = time.monotonic() + (pauses.next() if failed else _CLEAN_S * random.uniform(0.5, 1))
                self._probes.beat()
                registered = "" if self._sockets.registered else f"{self._driver}: not registered with the kubelet"
                self._probes.tell(problems[0] if problems else registered)
                for problem in set(problems) - self._said:
                    log.warning(problem)
                self._said = self._said | set(problems) if problems else set()
                self._wake.wait(min(1.0, self._places.interval_s))
                self._wake.clear()
        finally:
            self._stop.set()
            self._sockets.stop()
            self._gpus.stop()

    def stop(self) -> None:
        """End :meth:`run`."""
        self._stop.set()
        self._wake.set()

    def _run_step(self, step: object) -> list[str]:
        try:
            step()  # type: ignore[operator]
        except GpurunError as e:
            return [str(e)]
        return []

    def _look(self) -> None:
        """Read the node, and publish it.  Raises :class:`GpurunError`."""
        view = self._gpus.look()
        self._here = view.devices
        self._device_health.tell(view.problems)
        try:
            self._publisher.publish(view.pool)
        except ApiError as e:
            if e.status != 409:  # another client was faster: the next look is soon
                raise

    def _devices(self) -> Mapping[str, Allocatable]:
        return self._here

    def _look_again(self) -> None:
        """Whoever changes or deletes our slices makes us look at once."""
        self._slices_changed.set()
        self._wake.set()
