"""A thread that waits for the driver's Xid events, for as long as they are wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from gpurun import log
from gpurun.errors import GpurunError, error_text
from gpurun.gpu.nvidia.host.nvml import find_nvml
from gpurun.gpu.nvidia.host.nvml_watch import EventWatch, XidEvent
from gpurun.gpu.nvidia.host.roots import Roots

#: Seconds until NVML's process is started again after it has ended: at first, and at most.
_RETRY_S, _RETRY_MAX_S = 1.0, 60.0


class XidWatch:
    """Calls *on_event* with each event, from its own thread, between :meth:`start` and :meth:`stop`.

    The driver may be loaded later, hang or crash meanwhile: then it is asked again.
    """

    def __init__(self, roots: Roots, on_event: Callable[[XidEvent], None]) -> None:
        self._roots, self._on_event = roots, on_event
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xid-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch, in a thread that never keeps the process alive."""
        self._thread.start()

    def begin(self) -> None:
        """:meth:`start`, unless it has begun already."""
        if self._thread.ident is None:
            with suppress(RuntimeError):  # another thread was faster
                self.start()

    def stop(self) -> None:
        """End it, and NVML's process; returns within seconds."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        retry, said = _RETRY_S, ""
        while not self._stop.is_set():
            try:
                watch = EventWatch(find_nvml(self._roots))
            except (GpurunError, OSError) as e:
                problem = error_text(e)
            else:
                try:
                    while not self._stop.is_set():
                        for event in watch.wait(0.5):
                            self._on_event(event)
                        if watch.watching is not None:
                            retry, said = _RETRY_S, ""
                    return
                except GpurunError as e:
                    problem = error_text(e)
                finally:
                    watch.close()
            if problem != said:
                log.warning(f"Xid events cannot be watched: {problem}")
                said = problem
            self._stop.wait(retry)
            retry = min(retry * 2, _RETRY_MAX_S)
