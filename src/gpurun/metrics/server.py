"""The HTTP server of the metrics: by TLS and with passwords where a web configuration says so, and no client makes others
wait.

Every connection has a thread of its own, its TLS handshake too.  There are at most :data:`CONNECTIONS`: when one more comes,
the oldest is cut; and one that has lasted :data:`LONGEST_S` seconds is cut as well, however slowly it sends or reads.
"""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from gpurun import log
from gpurun.errors import error_text
from gpurun.metrics.passwords import BusyError, Passwords
from gpurun.metrics.web import Web, WebConfig

CONNECTIONS = 100
LONGEST_S = 30.0
_SILENT_S = 10.0  # for which a client may say nothing
_HEAD = 64 << 10  # bytes of a request


class Server(ThreadingMixIn, WSGIServer):
    """Listens on (address, port) at once; *web* says for each connection what the configuration is."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], application: Callable[..., Any], web: Callable[[], Web]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._web = web
        self._guard = threading.Lock()
        #: Each open connection's socket, the oldest first, and when it came.
        self._open: dict[int, tuple[socket.socket, float]] = {}
        self._count = 0
        super().__init__(address, _Handler)
        self.set_app(guard(application, lambda: web().config))

    def server_bind(self) -> None:
        """As WSGIServer, whose own asks DNS for the host's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.address_family == socket.AF_INET6:  # "::" is every address, of IPv4 as well
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Make room for *request*, and begin its thread."""
        with self._guard:
            while len(self._open) >= CONNECTIONS:
                self._cut(next(iter(self._open)))
            self._count += 1
            number = self._count
            self._open[number] = (request, time.monotonic())
        threading.Thread(target=self._serve, args=(number, request, client_address), daemon=True).start()

    def service_actions(self) -> None:
        """Cut what lasts too long; the server's loop calls this twice a second."""
        with self._guard:
            late = time.monotonic() - LONGEST_S
            for number in [number for number, (_, came) in self._open.items() if came < late]:
                self._cut(number)

    def _serve(self, number: int, request: socket.socket, client: Any) -> None:
        request.settimeout(_SILENT_S)
        # A client that goes away, or speaks something else, is not worth a word.
        with suppress(OSError, ValueError):
            try:
                web = self._web()
                if web.context is not None:
                    request = encrypted = web.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                    with self._guard:
                        if number not in self._open:
                            return  # cut meanwhile
                        self._open[number] = (request, self._open[number][1])
                    encrypted.do_handshake()
                    sans = web.config.tls.allowed_sans if web.config.tls else ()
                    if sans and not set(sans) & set(names_in(encrypted.getpeercert() or {})):
                        return
                self.finish_request(request, client)
            finally:
                with self._guard:
                    self._open.pop(number, None)
                self.shutdown_request(request)

    def _cut(self, number: int) -> None:
        """End a connection whose thread may be in the middle of it: that one finds the end of the stream, and closes it."""
        connection, _ = self._open.pop(number)
        with suppress(OSError):
            # Not SSLSocket's own, which takes TLS away from under the other thread.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away meanwhile is not worth a word."""


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        super().setup()
        self.rfile = _Bounded(self.rfile, _HEAD)  # type: ignore[assignment]

    def log_message(self, format: str, *args: object) -> None:
        """A scrape every few seconds is not worth a line."""

    def get_stderr(self) -> Any:
        """Where wsgiref writes tracebacks, of clients that go away too; our own errors are reported by :func:`guard`."""
        return io.StringIO()


class _Bounded:
    """A stream of which at most *left* bytes are read: http.server would take six megabytes of headers."""

    def __init__(self, stream: Any, left: int) -> None:
        self._stream, self._left = stream, left

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._stream.readline(self._left if size < 0 else min(size, self._left))
        self._left -= len(line)
        return line

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data

    def close(self) -> None:
        self._stream.close()


def names_in(certificate: dict[str, Any]) -> list[str]:
    """The alternative names (DNS, address, e-mail, URI) of a *certificate* as Python's ssl shows it."""
    kinds = ("DNS", "IP Address", "email", "URI")
    return [str(name) for kind, name in certificate.get("subjectAltName", ()) if kind in kinds]


def guard(application: Callable[..., Any], config: Callable[[], WebConfig]) -> Callable[..., Any]:
    """*application* for those who have a password, where *config* wants one, with its headers.

    /healthz needs none: the kubelet has no password, and it says ``ok`` and nothing else.
    """
    passwords: list[Passwords] = []

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        now = config()

        def begin(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start(status, [*headers, *now.headers], *rest)

        try:
            if now.users and environ.get("PATH_INFO") != "/healthz":
                if not passwords:
                    passwords.append(Passwords())
                if not passwords[0].good(now.users, str(environ.get("HTTP_AUTHORIZATION", ""))):
                    begin("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Basic")])
                    return [b"Unauthorized\n"]
            return list(application(environ, begin))
        except BusyError:
            begin("503 Service Unavailable", [("Content-Type", "text/plain"), ("Retry-After", "1")])
            return [b"Too many passwords at once\n"]
        except Exception as e:
            log.warning(f"metrics: {error_text(e)}")
            start("500 Internal Server Error", [("Content-Type", "text/plain")], (type(e), e, None))
            return [b"Internal Server Error\n"]

    return answer
