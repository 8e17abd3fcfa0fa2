"""The DRA drivers of a node in one process: that of NVIDIA's GPUs, and of each other maker's as soon as there are any."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping

from gpurun import log
from gpurun.errors import GpurunError
from gpurun.gpu.vendors import NAMES, Vendor, present
from gpurun.kubernetes.api import Api
from gpurun.kubernetes.dra.maker_backend import MakerBackend
from gpurun.kubernetes.dra.service import DraDriver, DraPlaces, checkpoint_path
from gpurun.kubernetes.makers import NVIDIA, makers_of
from gpurun.kubernetes.pauses import Pauses
from gpurun.kubernetes.probes import Probes
from gpurun.kubernetes.specs import NodeHost


class _Running:
    """One driver in a thread of its own, with the probes that it tells."""

    def __init__(self, driver: DraDriver, probes: Probes, name: str, ended: threading.Event) -> None:
        self.driver, self.probes = driver, probes
        self.failure: BaseException | None = None
        self._ended = ended
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.driver.run()
        except BaseException as e:  # whoever waits raises it
            self.failure = e
        self._ended.set()


class DraDrivers:
    """The whole of ``gpurun kubernetes dra-driver``: :meth:`run` until :meth:`stop`, which any thread may call.

    *makers* are names of :data:`gpurun.gpu.vendors.VENDORS`.  Raises :class:`GpurunError` when the API server cannot be
    asked, or NVIDIA's checkpoint cannot be read; that of another maker is a warning, and tried again.
    """

    def __init__(
        self, api: Api, node_name: str, host: NodeHost, places: DraPlaces, env: Mapping[str, str],
        probes: Probes | None = None, makers: tuple[str, ...] = NAMES,
    ) -> None:  # fmt: skip
        self._api, self._name, self._host, self._places, self._env = api, node_name, host, places, env
        self._probes = probes or Probes()
        self._rows = makers_of(makers)
        self._first: tuple[DraDriver, Probes] | None = None
        if NVIDIA in makers:
            own = Probes()
            self._first = DraDriver(api, node_name, host, places, env, own), own
        self._running: dict[str, _Running] = {}
        self._problems: dict[str, str] = {}
        self._pauses: dict[str, Pauses] = {}
        self._not_before: dict[str, float] = {}  # of a maker whose driver has failed: when it is tried again (monotonic)
        self._stopped, self._wake = threading.Event(), threading.Event()

    def run(self) -> None:
        """Serve until :meth:`stop`."""
        try:
            if self._first is not None:
                self._running[NVIDIA] = _Running(*self._first, NVIDIA, self._wake)
            while not self._stopped.is_set():
                for row in self._rows:
                    if row.name not in self._running and self._is_due(row):
                        self._begin(row)
                self._tell()
                self._wake.wait(min(1.0, self._places.interval_s))
                self._wake.clear()
                self._take_in_failures()
        finally:
            for one in self._running.values():
                one.driver.stop()
            for one in self._running.values():
                one.thread.join()

    def stop(self) -> None:
        """End :meth:`run`."""
        self._stopped.set()
        self._wake.set()

    def _is_due(self, row: Vendor) -> bool:
        """Whether there are GPUs of the maker's, or claims that have had some and are to be taken back; not right after a
        failure: the API server has other nodes as well."""
        if time.monotonic() < self._not_before.get(row.name, 0.0):
            return False
        there = row in present({"GPURUN_SYSROOT": self._host.roots.sysroot})
        return there or os.path.lexists(checkpoint_path(self._places.kubelet_dir, row.driver))

    def _begin(self, row: Vendor) -> None:
        own = Probes()
        try:
            backend = MakerBackend(row, self._host)
            made = DraDriver(self._api, self._name, self._host, self._places, self._env, own, backend)
        except GpurunError as e:
            self._fail(row.name, e)
            return
        self._problems.pop(row.name, None)
        self._running[row.name] = _Running(made, own, row.name, self._wake)

    def _take_in_failures(self) -> None:
        """What ends one maker's driver does not end the others: it begins again.  Raises what has ended NVIDIA's."""
        for name, one in [*self._running.items()]:
            if one.failure is None:
                continue
            if name == NVIDIA or not isinstance(one.failure, (GpurunError, OSError)):
                raise one.failure
            del self._running[name]
            self._fail(name, one.failure)

    def _fail(self, name: str, error: Exception) -> None:
        if self._problems.get(name) != str(error):
            log.warning(str(error))
        self._problems[name] = str(error)
        self._not_before[name] = time.monotonic() + self._pauses.setdefault(name, Pauses()).next()

    def _tell(self) -> None:
        if not any(one.probes.not_alive() for one in self._running.values()):
            self._probes.beat()
        told = [*self._problems.values(), *[one.probes.not_ready() for one in self._running.values()]]
        self._probes.tell(next((problem for problem in told if problem), ""))
