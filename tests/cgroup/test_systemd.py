"""What is said to a service manager (a simulated one; the real one: tests/systemd), and what is made of its answers."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.cgroup import placeholder, systemd
from gpurun.cgroup.scope import Property, Scope
from gpurun.cgroup.service_manager import Endpoint
from gpurun.errors import GpurunError
from gpurun.formats import dbus

HANG_UP = "(hang up)"


class Manager:
    """A service manager at a socket: answers calls by *answers* (values, an error's name, HANG_UP; None for nothing)."""

    reason = "because"  # the text of its errors

    def __init__(self, path: Path) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.answers: dict[str, list[tuple[str, tuple[Any, ...]] | str | None]] = {}
        self.signals: list[tuple[int, str, str, str]] = []
        self.unnamed: list[bool] = []  # for each connection, whether it was left to us to see who it is
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._socket.accept()[0]
            except OSError:
                return
            self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        # A message read together with BEGIN is one that systemd leaves lying, so all of this comes first, and alone.
        uid = str(os.geteuid()).encode().hex()
        said = connection.recv(4096)
        if said == b"\0AUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n":
            connection.sendall(b"DATA\r\n")
        else:
            assert said == f"\0AUTH EXTERNAL {uid}\r\nBEGIN\r\n".encode()
        self.unnamed.append(uid.encode() not in said)
        connection.sendall(b"OK 1234\r\n")
        pending = b""
        while chunk := connection.recv(4096):
            pending += chunk
            while taken := dbus.take_message(pending):
                serial = int.from_bytes(pending[8:12], "little")
                pending = pending[taken[1] :]
                self._answer(connection, serial, taken[0])
        connection.close()

    def _answer(self, connection: socket.socket, serial: int, call: dbus.Message) -> None:
        self.calls.append((call.member, call.body))
        queue = self.answers.get(call.member) or [("", ())]
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if answer is None:
            return
        if answer == HANG_UP:
            connection.shutdown(socket.SHUT_RDWR)
            return
        if isinstance(answer, str):
            connection.sendall(message(dbus.ERROR, [(5, ("u", serial)), (4, ("s", answer))], "s", (self.reason,)))
            return
        for signal in self.signals:
            connection.sendall(message(dbus.SIGNAL, [(3, ("s", "JobRemoved"))], "uoss", signal))
        connection.sendall(message(dbus.METHOD_RETURN, [(5, ("u", serial))], *answer))

    def members(self) -> list[str]:
        return [member for member, _ in self.calls]

    def close(self) -> None:
        """Return when the thread has ended: it is woken where it waits for the next connection."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


def message(kind: int, fields: list[tuple[int, Any]], signature: str, body: tuple[Any, ...]) -> bytes:
    content = bytes(dbus.marshal(signature, body))
    if signature:
        fields = [*fields, (8, ("g", signature))]
    head = bytes(dbus.marshal("yyyyuua(yv)", (ord("l"), kind, 0, 1, len(content), 1, tuple(fields))))
    return head + b"\0" * (-len(head) % 8) + content


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    if os.geteuid() != 0:
        pytest.skip("the driver is root's")
    made = Manager(tmp_path / "private")
    endpoint = Endpoint(str(tmp_path / "private"))
    monkeypatch.setattr(systemd, "system_endpoints", lambda: (endpoint,))
    monkeypatch.setattr(systemd, "TIMEOUT", 5.0)
    monkeypatch.setattr(Endpoint, "transient", str(tmp_path))
    yield made
    made.close()


SCOPE = Scope("gpurun-x.scope", "a.slice", (Property("Slice", "s", "a.slice"),), ())
JOB = ("o", ("/job/1",))
EXISTS = "org.freedesktop.systemd1.UnitExists"


def start(scope: Scope = SCOPE) -> tuple[bool, bool]:
    """Make the scope; whether its placeholder lives, and whether it does after its release."""
    pid = systemd.start_scope(scope)
    before = os.path.exists(f"/proc/{pid}")
    placeholder.release(pid)
    return before, os.path.exists(f"/proc/{pid}")


def test_a_scope_holds_a_placeholder(manager: Manager) -> None:
    manager.answers["StartTransientUnit"] = [JOB]
    manager.signals = [(1, "/job/0", "other.scope", "failed"), (2, "/job/1", "gpurun-x.scope", "done")]
    assert start() == (True, False)
    ((member, body),) = manager.calls
    assert member == "StartTransientUnit" and body[:2] == ("gpurun-x.scope", "replace")
    properties = dict(body[2])
    assert properties["Slice"] == ("s", "a.slice") and properties["PIDs"][0] == "au" and len(properties["PIDs"][1]) == 1


def test_a_slice_holds_nobody(manager: Manager) -> None:
    manager.answers["StartTransientUnit"] = [JOB]
    manager.signals = [(2, "/job/1", "a-b.slice", "done")]
    before = Path("/proc/thread-self/children").read_text()
    assert systemd.start_scope(Scope("a-b.slice", "a.slice", (), ())) == 0
    assert Path("/proc/thread-self/children").read_text() == before
    assert "PIDs" not in dict(manager.calls[0][1][2])


def test_a_failed_unit_in_the_way_is_reset_once(manager: Manager) -> None:
    manager.answers["StartTransientUnit"] = [EXISTS, JOB]
    manager.signals = [(2, "/job/1", "gpurun-x.scope", "done")]
    assert start() == (True, False)
    assert manager.members() == ["StartTransientUnit", "ResetFailedUnit", "StartTransientUnit"]
    manager.answers["StartTransientUnit"] = [EXISTS]
    with pytest.raises(GpurunError, match=r"Unit gpurun-x.scope was already loaded or has a fragment file"):
        start()


@pytest.mark.parametrize(
    ("answer", "signals", "words"),
    [
        (JOB, [(1, "/job/1", "gpurun-x.scope", "failed")], "error creating systemd unit `gpurun-x.scope`: got `failed`"),
        ("org.x.Denied", [], r"cannot make the systemd unit gpurun-x.scope: because \(org.x.Denied\)"),
        (JOB, [], "Timeout waiting for systemd to create gpurun-x.scope"),
        (None, [], "Timeout waiting for systemd to create gpurun-x.scope"),
    ],
)
def test_failures(manager: Manager, monkeypatch: pytest.MonkeyPatch, answer: Any, signals: list[Any], words: str) -> None:
    monkeypatch.setattr(systemd, "TIMEOUT", 0.2)
    manager.answers["StartTransientUnit"] = [answer]
    manager.signals = signals
    before = Path("/proc/thread-self/children").read_text()
    with pytest.raises(GpurunError, match=words):
        systemd.start_scope(SCOPE)
    assert Path("/proc/thread-self/children").read_text() == before, "the placeholder is gone"


@pytest.mark.parametrize(("text", "known"), [("v252.1-1", False), ("253", True), ("257 (257.13-1~deb13u1)", True)])
def test_an_older_systemd_is_not_asked_for_more(manager: Manager, text: str, known: bool) -> None:
    manager.answers["Get"] = [("v", (("s", text),))]
    systemd.set_properties("u.scope", (Property("OOMPolicy", "s", "kill", "", 253), Property("TasksMax", "t", 1)))
    member, body = manager.calls[-1]
    assert member == "SetUnitProperties" and body[:2] == ("u.scope", True)
    assert ("OOMPolicy" in dict(body[2])) is known and "TasksMax" in dict(body[2])


def test_refused_properties(manager: Manager) -> None:
    manager.answers["SetUnitProperties"] = ["org.x.Invalid"]
    with pytest.raises(GpurunError, match=r"cannot set properties of the systemd unit u.scope \(TasksMax\): because"):
        systemd.set_properties("u.scope", (Property("TasksMax", "t", 1),))


def test_a_refused_property_is_told_by_who_asked_for_it(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Manager, "reason", "Value specified in IOWeight is out of range")
    manager.answers["SetUnitProperties"] = ["org.x.Invalid"]
    properties = (
        Property("TasksMax", "t", 1, "resources.pids.limit"),
        Property("IOWeight", "t", 0, "resources.unified.io.weight"),
    )
    with pytest.raises(
        GpurunError, match=r"cannot set resources.unified.io.weight: systemd refuses it " r"for the unit u.scope"
    ):
        systemd.set_properties("u.scope", properties)


def test_stop(manager: Manager, tmp_path: Path) -> None:
    systemd.stop_unit("u.scope", str(tmp_path / "cgroup"))
    assert manager.calls == [], "unit and cgroup are gone: nothing is asked"
    (tmp_path / "u.scope").touch()
    manager.answers["StopUnit"] = [JOB]
    manager.signals = [(1, "/job/1", "u.scope", "done")]
    systemd.stop_unit("u.scope", str(tmp_path / "cgroup"))
    assert manager.members() == ["StopUnit", "ResetFailedUnit"]
    manager.answers["StopUnit"] = ["org.freedesktop.systemd1.NoSuchUnit"]
    manager.answers["ResetFailedUnit"] = ["org.freedesktop.systemd1.NoSuchUnit"]
    systemd.stop_unit("u.scope", str(tmp_path / "cgroup"))
    manager.answers["StopUnit"] = ["org.x.Denied"]
    with pytest.raises(GpurunError, match="Denied"):
        systemd.stop_unit("u.scope", str(tmp_path / "cgroup"))


def test_without_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints = (Endpoint(str(tmp_path / "a")), Endpoint(str(tmp_path / "b"), bus=True))
    monkeypatch.setattr(systemd, "system_endpoints", lambda: endpoints)
    with pytest.raises(GpurunError, match=r"cannot reach systemd.*/a: no such file or directory; .*/b: no such"):
        systemd.connect()


def test_the_bus_is_asked_where_there_is_no_private_socket(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints = (Endpoint(str(tmp_path / "none")), Endpoint(str(tmp_path / "private"), bus=True))
    monkeypatch.setattr(systemd, "system_endpoints", lambda: endpoints)
    systemd.connect().close()
    assert manager.members() == ["Hello", "AddMatch", "Subscribe"]


def user_manager(manager: Manager, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make *manager* the one of a user, with the cgroup /u."""
    monkeypatch.setattr(systemd, "user_endpoints", lambda *_: (Endpoint(str(path / "private"), user=True),))
    manager.answers["Get"] = [("v", (("s", "/u"),))]
    (path / "u").mkdir()
    (path / "u/cgroup.controllers").write_text("memory pids\n")


@pytest.mark.parametrize("in_namespace", [False, True])
def test_a_users_manager(manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_namespace: bool) -> None:
    """In a user namespace the number that we have there is not the one that a manager outside sees."""
    user_manager(manager, tmp_path, monkeypatch)
    monkeypatch.setattr(systemd, "in_user_namespace", lambda: in_namespace)
    found = systemd.find_user_manager(str(tmp_path))
    assert (found.cgroup, found.controllers) == ("/u", ("memory", "pids"))
    assert manager.unnamed == [in_namespace]


def test_no_manager_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "user_endpoints", lambda *_: (Endpoint(str(tmp_path / "none"), user=True),))
    with pytest.raises(GpurunError, match=r"cannot reach your systemd user manager \(.*/none: no such file.*enable-linger"):
        systemd.find_user_manager("/")
    monkeypatch.setattr(systemd, "user_endpoints", lambda *_: ())
    with pytest.raises(GpurunError, match="XDG_RUNTIME_DIR is not set"):
        systemd.find_user_manager("/")


@pytest.mark.parametrize(("own", "moved"), [("/u/app.slice/x.scope", False), ("/u", False), ("/user.slice/s.scope", True)])
def test_who_is_outside_is_moved_in(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, moved: bool
) -> None:
    user_manager(manager, tmp_path, monkeypatch)
    monkeypatch.setattr("gpurun.cgroup.tree.own_cgroup", lambda: own)
    manager.answers["StartTransientUnit"] = [JOB]
    manager.signals = [(1, "/job/1", f"gpurun-{os.getpid()}.scope", "done")]
    systemd.enter(Endpoint(str(tmp_path / "private"), user=True).text, 4711)
    assert manager.members() == ["Get", "StartTransientUnit"] if moved else ["Get"]
    if moved:
        assert dict(manager.calls[-1][1][2])["PIDs"] == ("au", (os.getpid(), 4711))


def test_who_hangs_up(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "BACK", 0.2)
    manager.answers["SetUnitProperties"] = [HANG_UP]
    with pytest.raises(GpurunError, match="hung up"):
        systemd.set_properties("u.scope", (Property("TasksMax", "t", 1),))
    assert len(manager.calls) > 1


NO_REPLY = "org.freedesktop.DBus.Error.NoReply"
NO_UNIT = "org.freedesktop.systemd1.NoSuchUnit"


@pytest.mark.parametrize("lost", [HANG_UP, NO_REPLY])
def test_re_executed_before_it_did_anything(manager: Manager, lost: str) -> None:
    manager.answers["StartTransientUnit"] = [lost, JOB]
    manager.answers["GetUnit"] = [NO_UNIT]
    manager.signals = [(2, "/job/1", "gpurun-x.scope", "done")]
    assert start() == (True, False)
    assert manager.members() == ["StartTransientUnit", "GetUnit", "StartTransientUnit"]
    first, second = [body for member, body in manager.calls if member == "StartTransientUnit"]
    assert first == second, "with the same placeholder"


@pytest.mark.parametrize("holds", [True, False])
def test_re_executed_after_it_did_it(manager: Manager, monkeypatch: pytest.MonkeyPatch, holds: bool) -> None:
    """The job may still be queued.  A unit of that name in which our placeholder is not is somebody else's."""
    monkeypatch.setattr("gpurun.cgroup.tree.cgroup_of", lambda pid: "/a.slice/gpurun-x.scope" if holds else "/a.slice")
    manager.answers["StartTransientUnit"] = [HANG_UP, EXISTS]
    manager.answers["GetUnit"] = [("o", ("/unit",))]
    states = [((7, "/job/7"), "inactive"), ((0, "/"), "active")]
    manager.answers["Get"] = [("v", (value,)) for job, state in states for value in (("(uo)", job), ("s", state))]
    if holds:
        assert start() == (True, False)
        assert manager.members() == ["StartTransientUnit", *["GetUnit", "Get", "Get"] * 2]
    else:
        with pytest.raises(GpurunError, match=r"Unit gpurun-x.scope was already loaded"):
            start()


def test_re_executed_while_it_is_told_and_stopped(manager: Manager, tmp_path: Path) -> None:
    manager.answers["SetUnitProperties"] = [HANG_UP, ("", ())]
    systemd.set_properties("u.scope", (Property("TasksMax", "t", 1),))
    (tmp_path / "u.scope").touch()
    manager.answers["StopUnit"] = [HANG_UP, NO_UNIT]
    systemd.stop_unit("u.scope", str(tmp_path / "cgroup"))
    assert manager.members() == ["SetUnitProperties"] * 2 + ["StopUnit"] * 2 + ["ResetFailedUnit"]


def test_nobody_is_let_in_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "private"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))  # connecting is refused: nobody listens
        managers: list[Manager] = []

        def pause(_: float) -> None:
            if not managers:
                path.unlink()
                managers.append(Manager(path))

        monkeypatch.setattr(systemd, "sleep", pause)
        monkeypatch.setattr(systemd, "system_endpoints", lambda: (Endpoint(str(path)),))
        systemd.set_properties("u.scope", (Property("TasksMax", "t", 1),))
        assert managers[0].members() == ["SetUnitProperties"]
        managers[0].close()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
        monkeypatch.setattr(systemd, "BACK", 0.2)
        with pytest.raises(GpurunError, match="private: connection refused"):
            systemd.connect()
