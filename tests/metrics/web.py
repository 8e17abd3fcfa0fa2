"""Certificates by openssl, a web configuration, and the metrics' server in this process."""

from __future__ import annotations

import base64
import http.client
import os
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpurun.metrics.server import Server
from gpurun.metrics.web import Web, WebConfig
from gpurun.metrics.web_files import WebFile

#: Of the package bcrypt: bcrypt.hashpw(b"right", bcrypt.gensalt(4)).
RIGHT = "$2b$04$31g/ximuByKlCQkXjFc.kuEQaR4TbfvmyTcqiIhfmEz7frG8hHGJi"


def openssl(*arguments: str) -> None:
    """Run it, and say nothing."""
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=120)


def certificate(directory: Path, name: str, san: str, ca: str = "") -> None:
    """``NAME.crt`` and ``NAME.key`` in *directory*, signed by the authority *ca* or by itself."""
    crt, key = str(directory / f"{name}.crt"), str(directory / f"{name}.key")
    signed = ["-CA", str(directory / f"{ca}.crt"), "-CAkey", str(directory / f"{ca}.key")] if ca else []
    kind = "critical,CA:FALSE" if ca else "critical,CA:TRUE"
    openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-addext", f"subjectAltName={san}",
        "-addext", f"basicConstraints={kind}", "-keyout", key, "-out", crt, *signed,
    )  # fmt: skip
    os.chmod(key, 0o600)


def certificates(directory: Path) -> Path:
    """An authority, a server's certificate, and those of two clients, in *directory*."""
    certificate(directory, "ca", "DNS:ca")
    certificate(directory, "server", "IP:127.0.0.1", "ca")
    certificate(directory, "client", "DNS:prometheus", "ca")
    certificate(directory, "other", "DNS:other", "ca")
    certificate(directory, "stranger", "DNS:prometheus")
    return directory


def write(path: Path, text: str, mode: int = 0o600) -> str:
    """Put *text* in the place of *path* in one step."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(mode)
    new.rename(path)
    return str(path)


@contextmanager
def serving(path: str = "", answer: Callable[[], bytes] = lambda: b"figures\n") -> Iterator[Server]:
    """A server under the web configuration *path* meanwhile."""

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        body = answer()
        start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]

    plain = Web(WebConfig(), None)
    server = Server(("127.0.0.1", 0), application, WebFile(path).now if path else lambda: plain)
    thread = threading.Thread(target=lambda: server.serve_forever(0.05))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def client(directory: Path, name: str = "") -> ssl.SSLContext:
    """What a client trusts, and its own certificate."""
    made = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    if name:
        made.load_cert_chain(directory / f"{name}.crt", directory / f"{name}.key")
    return made


def get(
    server: Server | int, tls: ssl.SSLContext | None = None, user: str = "", path: str = "/metrics"
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of a server or its port; *user* is ``name:password``."""
    port = server if isinstance(server, int) else server.server_port
    made = (
        http.client.HTTPSConnection("127.0.0.1", port, context=tls, timeout=60)
        if tls
        else http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    )
    try:
        made.request(
            "GET", path, headers={"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"} if user else {}
        )
        answer = made.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        made.close()
