"""The metrics' server over real sockets: TLS, passwords, files that change, and clients that are slow."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpurun.errors import ConfigError
from gpurun.metrics import server as server_module
from gpurun.metrics.passwords import Passwords, credentials
from gpurun.metrics.web_files import WebFile
from tests.metrics.web import RIGHT, certificate, certificates, client, get, serving, write

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl, which makes the certificates")
TLS = "tls_server_config: {cert_file: server.crt, key_file: server.key"
VERIFIED = f"{TLS}, client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.crt"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def pki(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_tls(pki: Path) -> None:
    with serving(write(pki / "web.yaml", f"{TLS}, min_version: TLS13}}", 0o644)) as server:
        assert get(server, client(pki))[:2] == (200, b"figures\n")
        old = client(pki)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            get(server, old)
        with pytest.raises(ssl.SSLCertVerificationError):
            get(server, ssl.create_default_context())
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            get(server)  # plain HTTP is no answer, and no harm
        assert get(server, client(pki))[0] == 200


def test_client_certificates(pki: Path) -> None:
    refused = (ssl.SSLError, ConnectionError, http.client.BadStatusLine)
    with serving(write(pki / "web.yaml", f"{VERIFIED}, client_allowed_sans: [prometheus]}}")) as server:
        assert get(server, client(pki, "client"))[0] == 200
        for name in ("", "stranger", "other"):
            with pytest.raises(refused):
                get(server, client(pki, name))
    with serving(
        write(pki / "web.yaml", f"{VERIFIED.replace('RequireAndVerifyClientCert', 'VerifyClientCertIfGiven')}}}")
    ) as server:
        assert get(server, client(pki))[0] == get(server, client(pki, "client"))[0] == 200
        with pytest.raises(refused):
            get(server, client(pki, "stranger"))


def test_certificates_with_words_between_them(pki: Path) -> None:
    """Collections of certificates have the names of their makers in any language."""
    whole = pki / "all.crt"
    whole.write_text("# Főtanúsítvány\n" + (pki / "ca.crt").read_text())
    text = VERIFIED.replace("client_ca_file: ca.crt", "client_ca_file: all.crt")
    with serving(write(pki / "web.yaml", f"{text}}}")) as server:
        assert get(server, client(pki, "client"))[0] == 200


def test_passwords(tmp_path: Path) -> None:
    text = f"basic_auth_users: {{alice: {RIGHT}}}\nhttp_server_config: {{headers: {{X-Frame-Options: deny}}}}\n"
    with serving(write(tmp_path / "web.yaml", text)) as server:
        status, body, headers = get(server, user="alice:right")
        assert (status, body, headers["X-Frame-Options"]) == (200, b"figures\n", "deny")
        for user in ("", "alice:wrong", "alice:", "bob:right", "alice:right\0", "alice:right\0more", "alice", ":"):
            status, body, headers = get(server, user=user)
            assert (status, body) == (401, b"Unauthorized\n"), user
            assert headers["WWW-Authenticate"] == "Basic" and headers["X-Frame-Options"] == "deny"
        assert get(server, path="/healthz")[0] == 200
        for _ in range(2):  # what is remembered is remembered of this password
            assert [get(server, user=f"alice:{word}")[0] for word in ("right", "wrong")] == [200, 401]


def test_hashes() -> None:
    """Hashes of the package bcrypt."""
    long = "$2b$04$1vXSZWbRybH07pNwHHbgXeF4rqWAjBcuGrAmlIK8bQ3qDsy6e3xzy"
    umlaut = "$2a$04$50l3YauS8X4dezKgs.AozOJ70S3z1EjSOXFjpItEdiR82nVlJrhhi"
    passwords = Passwords()
    for hashed, password in (
        (RIGHT, "right"), (RIGHT.replace("$2b", "$2y"), "right"), (long, "x" * 72), (umlaut, "päss"),
    ):  # fmt: skip
        users = (("u", hashed),)
        assert passwords.good(users, _header(f"u:{password}"))
        assert not passwords.good(users, _header(f"u:{password[:-1]}"))
    assert not passwords.good((), _header("u:right"))


def test_headers() -> None:
    assert credentials(_header("a:b:c")) == (b"a", b"b:c")
    for header in ("", "Basic", "Basic !", "Bearer YTpi", "Basic YWI=", "Basic é", "Basic YTpi YTpi"):
        assert credentials(header) is None, header


def test_files_that_change(pki: Path) -> None:
    """A new certificate serves at once, a password too; what is wrong meanwhile changes nothing."""
    web = pki / "web.yaml"
    with serving(write(web, f"{TLS}}}")) as server:

        def serial() -> object:
            port = server.server_port
            with (
                socket.create_connection(("127.0.0.1", port), 60) as plain,
                client(pki).wrap_socket(plain, server_hostname="127.0.0.1") as tls,
            ):
                return (tls.getpeercert() or {})["serialNumber"]

        first = serial()
        (pki / "next").mkdir()
        for name in ("ca.crt", "ca.key"):
            shutil.copy(pki / name, pki / "next")
        certificate(pki / "next", "server", "IP:127.0.0.1", "ca")
        (pki / "next/server.crt").rename(pki / "server.crt")
        assert serial() == first  # the key is still that of the old one
        (pki / "next/server.key").rename(pki / "server.key")
        assert serial() != first
        write(web, f"{TLS}}}\nbasic_auth_users: {{alice: {RIGHT}}}\n")
        assert [get(server, client(pki), user)[0] for user in ("", "alice:right")] == [401, 200]
        write(web, "basic_auth_users: nobody\n")
        assert get(server, client(pki))[0] == 401
        web.unlink()
        assert get(server, client(pki))[0] == 401
        # A file that the new configuration names comes later.
        write(web, f"{TLS.replace('server.crt', 'late.crt')}}}")
        assert get(server, client(pki))[0] == 401
        shutil.copy(pki / "server.crt", pki / "late.crt")
        assert get(server, client(pki))[0] == 200


def test_who_may_change_and_read_the_files(pki: Path) -> None:
    web = pki / "web.yaml"
    for text, mode in ((f"basic_auth_users: {{alice: {RIGHT}}}", 0o644), (f"{TLS}}}", 0o666), (f"{TLS}}}", 0o664)):
        with pytest.raises(ConfigError, match=r"web.yaml: .* \(mode 0"):
            WebFile(write(web, text, mode))
    write(web, f"{TLS}}}", 0o644)
    (pki / "server.key").chmod(0o644)
    with pytest.raises(ConfigError, match=r"server.key: has a key or passwords and can be read by everybody"):
        WebFile(str(web))
    (pki / "server.key").chmod(0o440)  # as a secret's volume has it
    WebFile(str(web))
    (pki / "server.crt").chmod(0o666)
    with pytest.raises(ConfigError, match=r"server.crt: can be written by others"):
        WebFile(str(web))
    if os.geteuid() == 0:
        (pki / "server.crt").chmod(0o644)
        os.chown(pki / "server.crt", 12345, 0)
        with pytest.raises(ConfigError, match=r"server.crt: belongs to user 12345"):
            WebFile(str(web))


def test_files_that_are_something_else(pki: Path) -> None:
    web = pki / "web.yaml"
    with pytest.raises(ConfigError, match=r"web.yaml: no such file"):
        WebFile(str(web))
    os.mkfifo(web, 0o600)
    with pytest.raises(ConfigError, match=r"web.yaml: is not a regular file"):
        WebFile(str(web))
    web.unlink()
    write(web, f"{TLS}}}")
    (pki / "server.key").write_text("no key")
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        WebFile(str(web))
    write(web, VERIFIED.replace("ca.crt", "web.yaml") + "}")
    shutil.copy(pki / "client.key", pki / "server.key")
    shutil.copy(pki / "client.crt", pki / "server.crt")
    with pytest.raises(ConfigError, match=r"web.yaml has no certificate in PEM"):
        WebFile(str(web))


def test_a_key_with_a_passphrase_asks_nobody(pki: Path) -> None:
    from tests.metrics.web import openssl

    openssl("ec", "-aes256", "-passout", "pass:x", "-in", str(pki / "server.key"), "-out", str(pki / "locked.key"))
    (pki / "locked.key").chmod(0o600)
    with pytest.raises(ConfigError, match="without a passphrase"):
        WebFile(write(pki / "web.yaml", "tls_server_config: {cert_file: server.crt, key_file: locked.key}"))


@pytest.mark.parametrize("tls", [False, True])
def test_silent_clients_make_nobody_wait(pki: Path, tls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than there may be connections: some say nothing, some begin and stop."""
    monkeypatch.setattr(server_module, "_SILENT_S", 3600.0)  # no time that is over makes room
    monkeypatch.setattr(server_module, "LONGEST_S", 3600.0)
    path = write(pki / "web.yaml", f"{TLS}}}") if tls else ""
    silent: list[socket.socket] = []
    with serving(path) as server:
        try:
            for number in range(server_module.CONNECTIONS + 20):
                silent.append(socket.create_connection(("127.0.0.1", server.server_port), 60))
                if number % 2:
                    silent[-1].sendall(b"\x16\x03\x01" if tls else b"GET /metrics HTTP/1.1\r\nX: ")
            assert get(server, client(pki) if tls else None)[0] == 200
            silent[0].settimeout(60)
            assert silent[0].recv(100) == b""  # the oldest had to go
        finally:
            for one in silent:
                one.close()


def test_a_client_that_drips_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time; the whole does not."""
    monkeypatch.setattr(server_module, "_SILENT_S", 3600.0)
    monkeypatch.setattr(server_module, "LONGEST_S", 0.2)
    with serving() as server, socket.create_connection(("127.0.0.1", server.server_port), 60) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX: a")
        assert slow.recv(100) == b""


def test_a_request_without_end() -> None:
    with serving() as server, socket.create_connection(("127.0.0.1", server.server_port), 60) as one:
        one.sendall(b"GET /metrics HTTP/1.1\r\n")
        try:
            for number in range(2000):
                one.sendall(b"X-%d: " % number + b"a" * 1000 + b"\r\n")
            one.recv(100)
        except OSError:
            pass  # it has been answered, and closed
        assert get(server)[0] == 200


def test_two_at_once() -> None:
    """The second is answered while the first waits for its figures."""
    both = threading.Barrier(2, timeout=60)

    def answer() -> bytes:
        both.wait()
        return b"figures\n"

    found: list[int] = []
    with serving(answer=answer) as server:
        threads = [threading.Thread(target=lambda: found.append(get(server)[0])) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [200, 200]


@pytest.mark.parametrize("option", ["--web-config-file", "--web.config.file"])
def test_the_command(pki: Path, option: str) -> None:
    web = pki / "web.yaml"
    env = os.environ | {"PYTHONPATH": "src", "GPURUN_SYSROOT": str(pki / "host")}
    words = ["--root", str(pki / "state"), "metrics", "--listen", "127.0.0.1:0", option, str(web)]
    command = [sys.executable, "-m", "gpurun", *words]
    write(web, "tls_server_config: {}\nother: 1\n")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and f"{web}: other: is not known" in done.stderr and "Traceback" not in done.stderr
    write(web, f"{TLS}}}\nbasic_auth_users: {{alice: {RIGHT}}}\n")
    nowhere = subprocess.run([*command, "--listen", "no host:1"], env=env, capture_output=True, text=True, timeout=120)
    assert nowhere.returncode == 1 and "--listen no host:1: Name or service not known" in nowhere.stderr
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "serving https://" in line)
        port = int(line.partition("/metrics")[0].rpartition(":")[2])
        assert get(port, client(pki))[0] == 401
        status, body, _ = get(port, client(pki), "alice:right")
        assert status == 200, body
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_an_error_of_our_own_is_told_and_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    def answer() -> bytes:
        raise KeyError("inside")

    with serving(answer=answer) as server:
        status, body, _ = get(server)
    assert status == 500 and b"inside" not in body
    assert "Traceback" not in capfd.readouterr().err


def _header(text: str) -> str:
    import base64

    return f"Basic {base64.b64encode(text.encode()).decode()}"
