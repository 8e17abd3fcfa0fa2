"""Xid errors as the driver tells them: NVML's events, through its process of its own.

The helper writes a line for each event, and an empty one every second; a driver that hangs is noticed by its silence.
"""

from __future__ import annotations

import posix
import select
import time

from gpurun.errors import ConfigError, GpuError
from gpurun.gpu.host.helper import end
from gpurun.gpu.nvidia.host.nvml import EVENTS, start
from gpurun.linux.files import CHUNK
from gpurun.oci.reader import as_object, parse_json
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds without any line after which the helper is given up.
SILENCE_S = 30.0


class XidEvent(Record):
    """One Xid error: *uuid* of the GPU (empty: the driver does not say which), *gi* and *ci* -1 but for MIG devices."""

    uuid: str
    xid: int
    gi: int = -1
    ci: int = -1


class EventWatch:
    """The helper that waits for events of the NVML *library*.  Starts with the object, ends with :meth:`close`.

    The thread that makes it must live as long as it does: the kernel ends the helper with that thread.
    Raises :class:`GpuError`.
    """

    def __init__(self, library: str) -> None:
        self._library = library
        self._pid, self._fd = start(library, EVENTS)
        self._rest = b""
        self._heard = time.monotonic()
        #: UUIDs of the GPUs that tell events; None while the driver has not said.
        self.watching: tuple[str, ...] | None = None

    def wait(self, timeout_s: float) -> Iterator[XidEvent]:
        """The events of the next *timeout_s* seconds, as they come.  Raises :class:`GpuError` when there will be no more."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._fd, select.POLLIN | select.POLLHUP)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if not poll.poll(left * 1000):
                if time.monotonic() - self._heard > SILENCE_S:
                    raise GpuError(f"NVML has not answered for {SILENCE_S:g} s ({self._library}): the NVIDIA driver hangs")
                return
            chunk = posix.read(self._fd, CHUNK)
            if not chunk:
                raise GpuError(f"NVML's process has ended ({self._library})")
            self._heard = time.monotonic()
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            # A last object without a newline says why there is no more; the end of the pipe follows it.
            lines += [self._rest] if self._rest.endswith(b"}") else []
            for line in lines:
                event = self._event(line)
                if event is not None:
                    yield event

    def _event(self, line: bytes) -> XidEvent | None:
        try:
            answer = as_object(parse_json(line, "NVML"), "NVML")
        except ConfigError:
            raise GpuError(f"NVML's process wrote an invalid line ({self._library})") from None
        if "error" in answer:
            raise GpuError(f"NVML error: {answer['error']} ({self._library})")
        if "watching" in answer:
            self.watching = tuple(answer["watching"])
        if "xid" not in answer:
            return None
        gi, ci = [-1 if answer.get(name) is None else int(answer[name]) for name in ("gpuInstance", "computeInstance")]
        return XidEvent(answer.get("uuid") or "", int(answer["xid"]), gi, ci)

    def close(self) -> None:
        """End the helper."""
        posix.close(self._fd)
        end(self._pid, time.monotonic())
