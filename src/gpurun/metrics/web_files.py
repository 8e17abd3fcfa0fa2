"""The files of a web configuration: who may change and read them, and what they say now."""

from __future__ import annotations

import os
import ssl
import stat
import threading

from gpurun import log
from gpurun.errors import ConfigError, GpurunError, strerror_lower
from gpurun.linux.files import Fd, read_fd
from gpurun.linux.owners import is_own_or_roots
from gpurun.metrics.web import Pem, TlsConfig, Web
from gpurun.metrics.web_config import web_config

_LIMIT = 1 << 20  # bytes of each file
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENTS = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


class WebFile:
    """The configuration in the file *path*, read again when one of its files has changed.  For any thread.

    What is wrong at the start is an error; later it is a warning, and what was read before stays in force: a key that is
    replaced a moment after its certificate does not end the service.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        #: The files of the configuration, and what stat(2) said of them before they were read.
        self._seen: dict[str, object] = {}
        self._web = self._read()

    def now(self) -> Web:
        """What the files say."""
        with self._lock:
            if any(_look(path) != seen for path, seen in self._seen.items()):
                try:
                    self._web = self._read()
                except GpurunError as e:  # one warning: what was read is what has been seen
                    log.warning(f"{e}; the configuration from before stays in force")
                else:
                    log.info(f"{self._path}: read again")
            return self._web

    def _read(self) -> Web:
        self._seen[self._path] = _look(self._path)
        data, mode = _read(self._path)
        config = web_config(data, self._path)
        tls = config.tls
        pems = [pem.path for pem in (tls.cert, tls.key, tls.client_ca) if pem.path] if tls else []
        self._seen = {self._path: self._seen[self._path]} | {path: _look(path) for path in pems}
        if config.secret:
            _only_ours(self._path, mode)
        return Web(config, _context(tls, self._path) if tls else None)


def _look(path: str) -> object:
    """What changes when *path* is written, or another file is put in its place."""
    try:
        it = os.stat(path)
    except OSError:
        return None
    return it.st_dev, it.st_ino, it.st_size, it.st_mode, it.st_uid, it.st_mtime_ns, it.st_ctime_ns


def _read(path: str) -> tuple[bytes, int]:
    """The content of *path* and its mode.  Raises :class:`ConfigError` if others than root and this user can write it."""
    try:
        with Fd(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)) as fd:
            it = os.fstat(fd)
            if not stat.S_ISREG(it.st_mode):
                raise ConfigError(path, "is not a regular file")
            if not is_own_or_roots(it, fd):
                raise ConfigError(path, f"belongs to user {it.st_uid}: it must be root's, or of the user that reads it")
            if it.st_mode & 0o022:
                raise ConfigError(path, f"can be written by others (mode {it.st_mode & 0o7777:04o}): chmod go-w {path}")
            if it.st_size > _LIMIT:
                raise ConfigError(path, f"is larger than {_LIMIT >> 20} MiB")
            return read_fd(fd, _LIMIT, path), it.st_mode
    except OSError as e:
        raise ConfigError(path, strerror_lower(e.errno or 0)) from None


def _only_ours(path: str, mode: int) -> None:
    if mode & 0o007:
        raise ConfigError(
            path, f"has a key or passwords and can be read by everybody (mode {mode & 0o7777:04o}): chmod o= {path}, or "
            "defaultMode 0440 of a secret's volume"
        )  # fmt: skip


def _context(tls: TlsConfig, source: str) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version, made.maximum_version = _VERSIONS[tls.min_version], _VERSIONS[tls.max_version]
    if not tls.server_order:
        made.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    made.options |= ssl.OP_NO_RENEGOTIATION
    made.verify_mode = _CLIENTS[tls.client_auth]
    cert, key = _pem(tls.cert, False), _pem(tls.key, True)
    try:
        # OpenSSL reads only paths, and what has been checked is what it shall read.
        with _memory(cert) as certs, _memory(key) as keys:
            made.load_cert_chain(f"/proc/self/fd/{certs}", f"/proc/self/fd/{keys}", password=lambda: "")
    except (ssl.SSLError, ValueError) as e:
        what = f"{tls.cert.path or 'cert'} and {tls.key.path or 'key'}"
        raise ConfigError(
            source, f"{what} are not a certificate and its key, in PEM and without a passphrase ({_reason(e)})"
        ) from None
    if tls.client_ca:
        try:
            # Between certificates there may be the names of their makers, in any language.
            made.load_verify_locations(cadata=_pem(tls.client_ca, False).decode("ascii", "backslashreplace"))
        except (ssl.SSLError, ValueError) as e:
            where = tls.client_ca.path or "client_ca"
            raise ConfigError(source, f"{where} has no certificate in PEM ({_reason(e)})") from None
    return made


def _pem(pem: Pem, secret: bool) -> bytes:
    if not pem.path:
        return pem.text.encode()
    data, mode = _read(pem.path)
    if secret:
        _only_ours(pem.path, mode)
    return data


def _memory(data: bytes) -> Fd:
    fd = Fd(os.memfd_create("pem", os.MFD_CLOEXEC))
    os.write(fd, data)
    return fd


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()
