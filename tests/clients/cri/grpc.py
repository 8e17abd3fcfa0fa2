"""A unary call over gRPC, on a Unix socket.

Reference: grpc/grpc, doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import socket
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events

_CODES = (
    "OK Canceled Unknown InvalidArgument DeadlineExceeded NotFound AlreadyExists PermissionDenied ResourceExhausted"
    " FailedPrecondition Aborted OutOfRange Unimplemented Internal Unavailable DataLoss Unauthenticated"
).split()


class RpcError(Exception):
    """The server has answered with an error: its code by name, and its text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{_CODES[code]}: {text}")


def call(address: str, method: str, message: bytes, timeout: float) -> bytes:
    """The answer to *message* (at most 64 KiB) from ``/service/method``; raises :class:`RpcError`, :class:`OSError`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(address)
        http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        http.initiate_connection()
        asked = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost")]
        http.send_headers(1, [*asked, ("content-type", "application/grpc"), ("te", "trailers")])
        http.send_data(1, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
        answer, headers = bytearray(), {"grpc-status": "2", "grpc-message": "the connection has ended"}
        while True:
            connection.sendall(http.data_to_send())
            data = connection.recv(65536)
            events = http.receive_data(data) if data else []
            for event in events:
                if isinstance(event, h2.events.DataReceived):
                    http.acknowledge_received_data(event.flow_controlled_length, 1)
                    answer += event.data
                elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                    headers |= {"grpc-message": ""} | {str(name): str(value) for name, value in event.headers}
            if not data or any(isinstance(e, h2.events.StreamEnded | h2.events.StreamReset) for e in events):
                break
    if headers["grpc-status"] != "0":
        raise RpcError(int(headers["grpc-status"]), unquote(headers["grpc-message"]))
    return bytes(answer[5:])
