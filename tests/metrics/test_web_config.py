"""The web configuration file: what it can say, and what is refused."""

from __future__ import annotations

import pytest

from gpurun.errors import ConfigError
from gpurun.metrics.web import Pem, WebConfig
from gpurun.metrics.web_config import web_config
from tests.metrics.web import RIGHT

TLS = "tls_server_config: {cert_file: a.crt, key_file: /k/a.key"


def test_all_that_it_can_say() -> None:
    config = web_config(
        f"""
tls_server_config:
  cert_file: server.crt
  key: |
    a key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: /ca.crt
  client_allowed_sans: [prometheus]
  min_version: TLS13
  prefer_server_cipher_suites: false
http_server_config:
  http2: false
  headers: {{X-Frame-Options: deny, Content-Security-Policy: ""}}
basic_auth_users:
  alice: {RIGHT}
""".encode(),
        "/etc/web/config.yaml",
    )
    tls = config.tls
    assert tls is not None and config.secret
    assert (tls.cert, tls.key, tls.client_ca) == (Pem(path="/etc/web/server.crt"), Pem("a key\n"), Pem(path="/ca.crt"))
    assert (tls.client_auth, tls.allowed_sans) == ("RequireAndVerifyClientCert", ("prometheus",))
    assert (tls.min_version, tls.max_version, tls.server_order) == ("TLS13", "TLS13", False)
    assert config.headers == (("X-Frame-Options", "deny"),) and config.users == (("alice", RIGHT),)


def test_nothing_is_plain_http() -> None:
    for text in (b"", b"{}", b"tls_server_config:\nbasic_auth_users:\nhttp_server_config:\n"):
        assert web_config(text, "f") == WebConfig()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "f: must be a mapping"),
        ("basic_auth_user: {}", "f: basic_auth_user: is not known"),
        ("rate_limit: {burst: 1}", "f: rate_limit: cannot be had"),
        (TLS + ", cipher_suites: []}", "f: tls_server_config.cipher_suites: cannot be had"),
        (TLS + ", curve_preferences: []}", "f: tls_server_config.curve_preferences: cannot be had"),
        (TLS + ", cert: x}", "has both cert and cert_file"),
        ("tls_server_config: {cert_file: a}", "has no key_file"),
        ("tls_server_config: {key_file: a}", "has no cert_file"),
        ("tls_server_config: {client_auth_type: RequireAndVerifyClientCert}", "has no cert_file"),
        (TLS + ", client_auth_type: RequireAnyClientCert}", "does not verify it"),
        (TLS + ", client_auth_type: Sometimes}", "'Sometimes' is unknown, known are NoClientCert, VerifyClientCertIfGiven"),
        (TLS + ", client_auth_type: RequireAndVerifyClientCert}", "needs client_ca_file"),
        (TLS + ", client_ca_file: ca}", "asks for no certificate"),
        (TLS + ", client_ca_file: c, client_auth_type: VerifyClientCertIfGiven, client_allowed_sans: [a]}", "allowed_sans"),
        (TLS + ', client_ca_file: "a\\0b"}', "tls_server_config.client_ca_file: has a NUL character"),
        ('basic_auth_users: {"\\ud800": x}', "f: line 1: has an escape that is no character"),
        (TLS + ", min_version: TLS10}", "TLS10 is not safe"),
        (TLS + ", min_version: TLS13, max_version: TLS12}", "newer than max_version"),
        (TLS + ", min_version: 1.2}", "min_version: 1.2 is unknown"),
        ("http_server_config: {http2: true}", "HTTP/2 is not served"),
        ("http_server_config: {headers: {Server: x}}", "'Server' cannot be set; the headers"),
        ("http_server_config: {headers: {X-Frame-Options: allow}}", "it can be deny or sameorigin"),
        ('http_server_config: {headers: {X-XSS-Protection: "1\\r\\nSet-Cookie: a"}}', "printable ASCII"),
        ("basic_auth_users: {alice: secret}", "the password of 'alice' is not a bcrypt hash"),
        ("basic_auth_users: {alice: 1234}", "the password of 'alice' is not a bcrypt hash"),
        (f"basic_auth_users: {{'a:b': {RIGHT}}}", "ends the name at the first colon"),
        ("basic_auth_users: [alice]", "basic_auth_users: must be a mapping"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as e:
        web_config(text.encode(), "f")
    assert sentence in str(e.value) and "secret" not in str(e.value)
