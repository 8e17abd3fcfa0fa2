"""Who comes in while others try passwords."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.metrics import passwords as passwords_module
from gpurun.metrics.passwords import BusyError, Passwords
from tests.metrics.web import RIGHT, get, serving, write

USERS = (("alice", RIGHT),)


def header(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


class Hashing:
    """Passwords whose hashes are counted, and wait while :attr:`go` is not set; *begun* counts those that came so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hashed: list[bytes] = []
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Semaphore(0)
        real = Passwords._hash

        def counted(passwords: Passwords, password: bytes, setting: bytes) -> bytes | None:
            self.hashed.append(password)
            self.begun.release()
            assert self.go.wait(60)
            return real(passwords, password, setting)

        monkeypatch.setattr(Passwords, "_hash", counted)
        self.passwords = Passwords()
        self.hashed.clear()
        assert self.begun.acquire(timeout=60)


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hashing]:
    made = Hashing(monkeypatch)
    yield made
    made.go.set()


def test_wrong_passwords_push_no_right_one_out(hashing: Hashing) -> None:
    good = hashing.passwords.good
    assert good(USERS, header("alice:right"))
    for number in range(passwords_module._REMEMBERED + 5):
        assert not good(USERS, header(f"alice:{number}"))
    tried = len(hashing.hashed)
    assert good(USERS, header("alice:right")) and len(hashing.hashed) == tried
    assert sum([len(keys) for keys in hashing.passwords._known.values()]) == passwords_module._REMEMBERED + 1


def test_more_users_than_are_remembered_otherwise(hashing: Hashing) -> None:
    many = tuple([(f"user{number}", RIGHT) for number in range(passwords_module._REMEMBERED + 5)])
    for _ in range(2):
        assert all(hashing.passwords.good(many, header(f"{name}:right")) for name, _ in many)
    assert len(hashing.hashed) == len(many)


def test_who_is_known_waits_for_nobody_and_only_so_many_wait(hashing: Hashing) -> None:
    good = hashing.passwords.good
    assert good(USERS, header("alice:right")) and hashing.begun.acquire(timeout=60)
    hashing.go.clear()
    threads = [
        threading.Thread(target=good, args=(USERS, header(f"alice:{number}")), daemon=True)
        for number in range(passwords_module._WAITING)
    ]
    for thread in threads:
        thread.start()
    assert hashing.begun.acquire(timeout=60)  # the first hashes, the others wait for it or are on their way
    while hashing.passwords._waiting._value:  # type: ignore[attr-defined]
        threads[-1].join(0.01)
    with pytest.raises(BusyError):
        good(USERS, header("alice:more"))
    assert good(USERS, header("alice:right"))
    hashing.go.set()
    for thread in threads:
        thread.join(60)
    assert not good(USERS, header("alice:more"))


def test_one_more_is_told_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords_module, "_WAITING", 0)
    with serving(write(tmp_path / "web.yaml", f"basic_auth_users: {{alice: {RIGHT}}}\n")) as server:
        status, _, headers = get(server, user="alice:right")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert get(server, path="/healthz")[0] == 200
