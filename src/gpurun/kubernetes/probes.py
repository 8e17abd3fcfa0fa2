"""What the kubelet's probes ask a part of gpurun: is it alive (/healthz), does it do its work (/readyz)?

HTTP, as Kubernetes' own programs have it: a probe that starts a program costs more than the answer.  The answers say nothing
but ``ok`` or why not, and whoever reaches the port may hold no more than a few threads.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from gpurun.errors import GpurunError, oserror_text

#: Seconds without a sign of life after which a part is to be started again.
LIMIT_S = 180.0
_REQUESTS = 16


class Probes:
    """The state of a part; any thread may call all of it.  *limit_s* is how long it may go without a :meth:`beat`."""

    def __init__(self, limit_s: float = LIMIT_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._beat = clock()
        self._not_ready = "it is starting"

    def beat(self, rests_s: float = 0.0) -> None:
        """The part's own loop goes round; the next time may be *rests_s* seconds later than usual."""
        self._beat = self._clock() + rests_s

    def tell(self, not_ready: str) -> None:
        """Why the part does not do its work now; empty: it does."""
        self._not_ready = not_ready

    def not_alive(self) -> str:
        """Why it is to be started again; empty: it is well."""
        silent = self._clock() - self._beat
        return f"no sign of life for {silent:.0f} s" if silent > self._limit_s else ""

    def not_ready(self) -> str:
        """What :meth:`tell` was called with last."""
        return self._not_ready


class _Server(ThreadingMixIn, TCPServer):
    daemon_threads = allow_reuse_address = True

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily, probes: Probes) -> None:
        self.address_family, self.probes = family, probes
        self._free = threading.BoundedSemaphore(_REQUESTS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:  # "::" is every address, of IPv4 as well
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away meanwhile is not worth a word."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 5  # seconds for which a client may say nothing
    server: _Server

    def do_GET(self) -> None:
        probes = self.server.probes
        asked = {"/healthz": probes.not_alive, "/readyz": probes.not_ready}.get(self.path.partition("?")[0])
        why = asked() if asked else ""
        body = f"{why or 'ok'}\n".encode() if asked else b"there are /healthz and /readyz\n"
        self.send_response(404 if asked is None else 503 if why else 200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A probe every few seconds is not worth a line."""


@contextlib.contextmanager
def serve_probes(address: str, port: int, probes: Probes) -> Iterator[int]:
    """Answer for *probes* at *address* (empty: all) and *port* meanwhile; the port.  Raises :class:`GpurunError`."""
    tried = [("::", socket.AF_INET6), ("0.0.0.0", socket.AF_INET)] if not address else []
    tried = tried or [(address, socket.AF_INET6 if ":" in address else socket.AF_INET)]
    error: OSError | None = None
    for host, family in tried:
        try:
            server = _Server((host, port), family, probes)
            break
        except OSError as e:  # a kernel without IPv6 has no "::"
            error = e
    else:
        why = oserror_text(error) if error else "there is no address"
        raise GpurunError(f"listen at {address or 'every address'}, port {port}, for probes: {why}")
    thread = threading.Thread(target=server.serve_forever, name="probes", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
