"""What a web configuration says, as records."""

from __future__ import annotations

from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl


class Pem(Record):
    """Where a certificate or key is: in the configuration itself, or at *path*."""

    text: str = ""
    path: str = ""

    def __bool__(self) -> bool:
        return bool(self.text or self.path)


class TlsConfig(Record):
    """How connections are encrypted.  *client_auth* is one of exporter-toolkit's words."""

    cert: Pem
    key: Pem
    client_ca: Pem
    client_auth: str
    allowed_sans: tuple[str, ...]
    min_version: str
    max_version: str
    server_order: bool


class WebConfig(Record):
    """*tls* is None for plain HTTP; *users* has bcrypt hashes by name, no password is needed where it is empty."""

    tls: TlsConfig | None = None
    users: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def secret(self) -> bool:
        """Whether the file itself has what others must not read."""
        return bool(self.users or (self.tls and self.tls.key.text))


class Web(Record):
    """A configuration that can be served: *context* has its certificates, None for plain HTTP."""

    config: WebConfig
    context: ssl.SSLContext | None
