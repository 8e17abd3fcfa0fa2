"""Passwords against their bcrypt hashes, by crypt(3) of the C library's own libcrypt.

Python's package ``bcrypt`` would do as well; libcrypt (libxcrypt) is on every Linux with PAM already, and knows the same
hashes.
"""

from __future__ import annotations

import base64
import binascii
import ctypes
import hashlib
import hmac
import threading

from gpurun.errors import GpurunError

_NAMES = ("libcrypt.so.1", "libcrypt.so.2", None)  # the last: musl has it in the C library
#: More than ``struct crypt_data`` has in any library.
_ROOM = 256 << 10
#: Of right passwords and of wrong ones, each.
_REMEMBERED = 100
#: How many may wait for their hash; the next has to come again.
_WAITING = 16
#: The setting that a machine is tried with.
_SETTING = b"$2b$04$abcdefghijklmnopqrstuu"
#: Where the hash itself begins, behind cost and salt.
_HASH = 29


class BusyError(Exception):
    """So many wait for their passwords to be hashed that one more is not looked at."""


class Passwords:
    """Who may come in.  For any thread; one hash is computed at a time, and what came out is remembered.

    Wrong passwords are remembered apart from right ones: however many are tried, a client that came in before comes in again
    without a hash, and does not wait for anybody's.

    Raises :class:`GpurunError` where this machine's libcrypt is not there or knows no bcrypt.
    """

    def __init__(self) -> None:
        self._crypt = _library()
        self._lock = threading.Lock()
        self._waiting = threading.BoundedSemaphore(_WAITING)
        self._known: dict[bool, dict[bytes, None]] = {True: {}, False: {}}
        if self._hash(b"", _SETTING) is None:
            raise GpurunError("basic_auth_users: the libcrypt of this system does not support bcrypt: install libxcrypt")

    def good(self, users: tuple[tuple[str, str], ...], header: str) -> bool:
        """Whether the Authorization *header* has the name and the password of one of *users* (name, bcrypt hash).

        Raises :class:`BusyError` for a password that is not remembered while too many wait for theirs.
        """
        given = credentials(header)
        if given is None:
            return False
        name, password = given
        if not users:
            return False
        hashes = {user.encode(): text.encode() for user, text in users}
        wanted = hashes.get(name)
        key = hashlib.sha256(repr((name, wanted, password)).encode()).digest()
        known = self._remembered(key)
        if known is not None:
            return known
        if not self._waiting.acquire(blocking=False):
            raise BusyError
        try:
            with self._lock:
                known = self._remembered(key)  # another thread's, meanwhile
                if known is None:
                    # A user who is not there takes as long as one who is.
                    made = self._hash(password, (wanted or next(iter(hashes.values())))[:_HASH])
                    known = wanted is not None and made is not None and hmac.compare_digest(made[_HASH:], wanted[_HASH:])
                    alike = self._known[known]
                    while len(alike) >= max(_REMEMBERED, len(users)):
                        del alike[next(iter(alike))]
                    alike[key] = None
        finally:
            self._waiting.release()
        return known

    def _remembered(self, key: bytes) -> bool | None:
        return next((known for known, keys in self._known.items() if key in keys), None)

    def _hash(self, password: bytes, setting: bytes) -> bytes | None:
        if b"\0" in password:  # C would take what stands before it
            return None
        found: bytes | None = self._crypt.crypt_r(password, setting, ctypes.create_string_buffer(_ROOM))
        return found if found is not None and found.startswith(setting[:7]) else None


def credentials(header: str) -> tuple[bytes, bytes] | None:
    """What a header of basic authentication (RFC 7617) says, None for anything else.

    Returns (name, password).
    """
    kind, _, text = header.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(text.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def _library() -> ctypes.CDLL:
    for name in _NAMES:
        try:
            found = ctypes.CDLL(name)
            found.crypt_r.restype = ctypes.c_char_p
        except (OSError, AttributeError):
            continue
        found.crypt_r.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]
        return found
    raise GpurunError("basic_auth_users: passwords need libcrypt, which this system has not: install libcrypt1 or libxcrypt")
