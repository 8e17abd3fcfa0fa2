"""The web configuration file of Prometheus' exporter-toolkit, as a record; pure.

Keys, defaults and checks are those of its docs/web-configuration.md.  What this server cannot do is refused rather than
ignored: whoever has set it would believe that it has an effect.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from gpurun.errors import ConfigError
from gpurun.formats.yaml import read_yaml
from gpurun.kubernetes.models import Absent, Table, read
from gpurun.metrics.web import Pem, TlsConfig, WebConfig

_BCRYPT = re.compile(r"\$2[abxy]\$(0[4-9]|1[0-9]|2[0-9]|3[01])\$[./A-Za-z0-9]{53}", re.ASCII)
#: Header → its values; none: any.  exporter-toolkit's list.
_HEADERS: dict[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
_UNVERIFIED = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
_VERIFIED = ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
#: Keys that mean something to exporter-toolkit and cannot be had here → why.
_CANNOT = {
    "tls_server_config.cipher_suites": "Python's ssl does not know Go's names, and OpenSSL's defaults are safe",
    "tls_server_config.curve_preferences": "Python's ssl can set one curve and no order",
    "rate_limit": "an answer serves for two seconds here, however many ask",
}


def _version(value: object) -> object:
    if value in ("TLS10", "TLS11"):
        raise ValueError(f"{value} is not safe: TLS12 or TLS13")
    return value


def _client_auth(value: object) -> object:
    if value in _UNVERIFIED:
        raise ValueError(
            f"{value} asks for a certificate but does not verify it, so anyone can connect: use RequireAndVerifyClientCert "
            "with client_ca_file"
        )
    return value or "NoClientCert"


def _http2(value: object) -> object:
    if value is True:
        raise ValueError("HTTP/2 is not served, Prometheus asks by HTTP/1.1 as well: leave the key out, or say false")
    return value


def _header(value: object) -> object:
    if isinstance(value, dict):
        for name, text in value.items():
            if name not in _HEADERS:
                raise ValueError(f"{name!r} cannot be set; the headers that can be set are {', '.join(_HEADERS)}")
            if not isinstance(text, str) or not text.isprintable() or not text.isascii():
                raise ValueError(f"{name} must be a text of printable ASCII characters")
            if text and _HEADERS[name] and text not in _HEADERS[name]:
                raise ValueError(f"{name} is {text!r}, it can be {' or '.join(_HEADERS[name])}")
    return value


def _users(value: object) -> object:
    if isinstance(value, dict):
        for name, text in value.items():
            if not isinstance(name, str) or not name or ":" in name:
                raise ValueError(f"{name!r} cannot be a user: basic authentication ends the name at the first colon")
            if not isinstance(text, str) or not _BCRYPT.fullmatch(text):
                raise ValueError(f"the password of {name!r} is not a bcrypt hash: make it with `htpasswd -nBC 10 {name}`")
    return value


Version = Annotated[Literal["TLS12", "TLS13"], BeforeValidator(_version)]
ClientAuth = Annotated[
    Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"], BeforeValidator(_client_auth)
]


class _Tls(Table):
    cert: str = ""
    key: str = ""
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth_type: ClientAuth = "NoClientCert"
    client_allowed_sans: list[str] = Field(default_factory=list)
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"
    prefer_server_cipher_suites: bool = True


class _Http(Table):
    http2: Annotated[bool, BeforeValidator(_http2)] = False
    headers: Annotated[Absent[dict[str, str]], BeforeValidator(_header)] = Field(default_factory=dict)


class _File(Table):
    tls_server_config: Absent[_Tls] = Field(default_factory=_Tls)
    http_server_config: Absent[_Http] = Field(default_factory=_Http)
    basic_auth_users: Annotated[Absent[dict[str, str]], BeforeValidator(_users)] = Field(default_factory=dict)


def web_config(data: bytes, source: str) -> WebConfig:
    """The configuration in *data*; paths in it are relative to the directory of *source*, its file.

    Raises :class:`ConfigError` in one sentence for what is wrong, not known, or cannot be had.
    """
    document = read_yaml(data, source)
    file = read(_File, {} if document is None else document, source, ": ")
    tls, http = file.tls_server_config, file.http_server_config
    for table, name in ((file, ""), (tls, "tls_server_config."), (http, "http_server_config.")):
        for key in table.model_extra or {}:
            place = f"{name}{key}"
            why = _CANNOT.get(place)
            raise ConfigError(f"{source}: {place}", f"cannot be had: {why}. Leave it out" if why else "is not known")
    return WebConfig(
        _tls(tls, source) if tls.model_fields_set else None,
        tuple(file.basic_auth_users.items()),
        tuple([(name, text) for name, text in http.headers.items() if text]),
    )


def _tls(table: _Tls, source: str) -> TlsConfig:
    where = f"{source}: tls_server_config"
    directory = os.path.dirname(source)

    def pem(name: str) -> Pem:
        text, path = str(getattr(table, name)), str(getattr(table, f"{name}_file"))
        if text and path:
            raise ConfigError(where, f"has both {name} and {name}_file: leave one out")
        if "\0" in path:
            raise ConfigError(f"{where}.{name}_file", "has a NUL character, which no path has")
        return Pem(text, os.path.join(directory, path) if path else "")

    made = TlsConfig(
        pem("cert"), pem("key"), pem("client_ca"), table.client_auth_type, tuple(table.client_allowed_sans),
        table.min_version, table.max_version, table.prefer_server_cipher_suites,
    )  # fmt: skip
    for name, given in (("cert", made.cert), ("key", made.key)):
        if not given:
            raise ConfigError(where, f"has no {name}_file")
    if made.client_auth in _VERIFIED and not made.client_ca:
        raise ConfigError(where, f"client_auth_type {made.client_auth} needs client_ca_file")
    if made.client_auth not in _VERIFIED and (made.client_ca or made.allowed_sans):
        raise ConfigError(where, "has client_ca_file or client_allowed_sans, and client_auth_type asks for no certificate")
    if made.client_auth == "VerifyClientCertIfGiven" and made.allowed_sans:
        raise ConfigError(where, "client_allowed_sans need client_auth_type RequireAndVerifyClientCert")
    if made.min_version > made.max_version:
        raise ConfigError(where, f"min_version {made.min_version} is newer than max_version {made.max_version}")
    return made
