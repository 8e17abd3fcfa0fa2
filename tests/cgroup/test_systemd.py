"""The systemd driver: names, properties, and what is said to a service manager (a simulated one; the real one: tests/vm)."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.cgroup import dbus, systemd
from gpurun.cgroup.devices import container_rules, emulate
from gpurun.cgroup.resources import CgroupWrite, plan_resources
from gpurun.cgroup.scope import (
    Property,
    Scope,
    annotation_properties,
    as_systemd_rounds,
    bitmask,
    cpu_quota,
    device_properties,
    expand_slice,
    limit_properties,
    scope_names,
    unit_properties,
)
from gpurun.cgroup.service_manager import Endpoint
from gpurun.errors import ConfigError, GpurunError
from gpurun.oci.resources import DeviceRule, read_resources
from tests.engine.planning import base, plan, refusal, set_path

MAX = (1 << 64) - 1
ALL = ("cpu", "cpuset", "io", "memory", "pids", "hugetlb")


def values(properties: tuple[Property, ...]) -> dict[str, Any]:
    return {one.name: one.value for one in properties}


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("system.slice:docker:abc", ("system.slice", "docker-abc.scope")),
        ("kubepods-burstable.slice:cri-containerd:abc", ("kubepods-burstable.slice", "cri-containerd-abc.scope")),
        (":libpod:x", ("system.slice", "libpod-x.scope")),
        ("a.slice::x", ("a.slice", "-x.scope")),
        ("-.slice:p:x", ("-.slice", "p-x.scope")),
        ("a.slice:p:a-b.slice", ("a.slice", "a-b.slice")),
        ("-.slice::pod.slice", ("-.slice", "pod.slice")),
        ("", ("system.slice", "gpurun-id1.scope")),
    ],
)
def test_names(path: str, names: tuple[str, str]) -> None:
    assert scope_names(path, "id1") == names


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/a/b", 'expected cgroupsPath to be of format "slice:prefix:name" for systemd cgroups, got "/a/b" instead'),
        ("a.slice:b", "slice:prefix:name"),
        ("a.slice:b:c:d", "slice:prefix:name"),
        ("system:p:n", "invalid slice name: system"),
        ("a/b.slice:p:n", "invalid slice name"),
        ("a--b.slice:p:n", "invalid slice name"),
        (".slice:p:n", "invalid slice name"),
        ("a.slice:p:pod.slice", 'the slice "pod.slice" cannot be in "a.slice": by its name it is in "-.slice"'),
        ("a.slice:p:b-c.slice", 'by its name it is in "b.slice"'),
        ("-.slice::-.slice", "cannot be in"),
        ("a.slice::a-.slice", "invalid slice name"),
        ("a.slice:p:", "cannot be the name"),
        ("a.slice:p:x/../y", "cannot be the name"),
        ("a.slice:p:" + "x" * 255, "cannot be the name"),
        ("a.slice:p:b+c", "cannot be the name"),
    ],
)
def test_names_refused(path: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        scope_names(path, "id1")
    assert raised.value.where == "linux.cgroupsPath" and words in str(raised.value)


def test_dashes_nest() -> None:
    assert expand_slice("a-b-c.slice") == "/a.slice/a-b.slice/a-b-c.slice"
    assert expand_slice("system.slice") == "/system.slice"
    assert expand_slice("-.slice") == ""


def test_limits() -> None:
    resources = read_resources(
        {
            "memory": {"limit": 1 << 20, "swap": 3 << 20, "reservation": -1},
            "cpu": {"shares": 1024, "quota": 150500, "period": 100000, "cpus": "0-2,9", "mems": "0"},
            "pids": {"limit": -1},
            "blockIO": {"weight": 10},
            "unified": {"memory.high": "4096", "pids.max": "7", "misc.max": "x 1"},
        }
    )
    found = limit_properties(plan_resources(resources, (*ALL, "misc")))
    assert values(found) == {
        "MemoryMax": 1 << 20,
        "MemorySwapMax": 2 << 20,
        "MemoryLow": MAX,
        "CPUWeight": 100,
        "CPUQuotaPerSecUSec": 1_510_000,  # whole percents, rounded up
        "CPUQuotaPeriodUSec": 100_000,
        "AllowedCPUs": b"\x07\x02",
        "AllowedMemoryNodes": b"\x01",
        "TasksMax": 7,
        "IOWeight": 1,
        "MemoryHigh": 4096,
    }
    for one in found:  # systemd refuses a value of another type
        assert dbus.marshal(one.signature, (one.value,))
    assert {one.where for one in found if one.name == "TasksMax"} == {"linux.resources.unified.pids.max"}


@pytest.mark.parametrize(
    ("file", "value", "found"),
    [
        ("memory.high", "64M", {"MemoryHigh": 64 << 20}),
        ("memory.max", "1g", {"MemoryMax": 1 << 30}),
        ("memory.max", "nonsense", {}),
        ("memory.max", "1kk", {}),
        ("memory.max", "", {}),
        ("io.weight", "default 7", {"IOWeight": 7}),
        ("io.weight", "nonsense", {}),
        ("cpu.max", "nonsense", {}),
        ("cpu.max", "1000 0", {}),
        ("cpu.max", "max", {"CPUQuotaPerSecUSec": MAX, "CPUQuotaPeriodUSec": 100_000}),
    ],
)
def test_what_unified_may_hold(file: str, value: str, found: dict[str, int]) -> None:
    """The kernel says whether a value is one; systemd is told what can be told."""
    assert values(limit_properties((CgroupWrite(file, value, "w"),))) == found


def test_a_slice_of_ones_own() -> None:
    config = set_path(base(), "linux.cgroupsPath", "a.slice:p:a-b.slice")
    made = plan(set_path(config, "linux.resources.pids", {"limit": 3}), cgroup_manager="systemd")
    scope = made.cgroup.scope
    assert made.cgroup.path == "/sys/fs/cgroup/a.slice/a-b.slice"
    assert scope is not None and scope.unit == "a-b.slice" and values(scope.limits)["TasksMax"] == 3
    properties = values(scope.properties)
    assert properties["Wants"] == ("a.slice",) and "Slice" not in properties and "Delegate" not in properties


def test_an_idle_cgroup() -> None:
    found = limit_properties((CgroupWrite("cpu.idle", "1", "w"),))
    assert [(one.name, one.value, one.since) for one in found] == [("CPUWeight", 0, 252)]
    assert limit_properties((CgroupWrite("cpu.idle", "0", "w"),)) == ()


def test_quota_is_never_stricter() -> None:
    assert cpu_quota(1, 1_000_000) == 10_000
    assert cpu_quota(50_000, 100_000) == 500_000
    assert cpu_quota(33_333, 100_000) == 340_000


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        ("150500 100000", "151000 100000"),
        ("50000 100000", "50000 100000"),
        ("1 1000000", "10000 1000000"),
        ("33333", "34000 100000"),
        ("max 20000", "max 20000"),
        ("nonsense", "nonsense"),
    ],
)
def test_the_file_says_what_systemd_will_keep(value: str, rounded: str) -> None:
    write = CgroupWrite("cpu.max", value, "w")
    assert [one.value for one in as_systemd_rounds((write,))] == [rounded]
    other = CgroupWrite("pids.max", "50500", "w")
    assert as_systemd_rounds((other,)) == (other,)


@pytest.mark.parametrize(("text", "mask"), [("0", b"\1"), ("7,8", b"\x80\1"), ("0-15", b"\xff\xff"), ("1\n", b"\2")])
def test_bit_masks(text: str, mask: bytes) -> None:
    assert bitmask(text, "w") == mask


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0-99999999"])
def test_bit_masks_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no list of numbers"):
        bitmask(text, "w")


GPU = (DeviceRule(True, "c", 195, 0, "rw"), DeviceRule(True, "c", 195, 255, "rw"), DeviceRule(True, "c", 507, 0, "rw"))


def test_devices() -> None:
    rules = container_rules((DeviceRule(False, "a", None, None, "rwm"), *GPU))
    properties = device_properties(emulate(rules))
    assert [(p.name, p.value) for p in properties[:2]] == [("DevicePolicy", "strict"), ("DeviceAllow", ())]
    allowed = dict(properties[2].value)
    assert allowed["/dev/char/195:0"] == allowed["/dev/char/195:255"] == allowed["/dev/char/507:0"] == "rw"
    assert allowed["char-136"] == "rwm" and allowed["char-*"] == allowed["block-*"] == "m"
    assert allowed["/dev/char/1:3"] == "rwm" and "/dev/char/195:1" not in allowed


@pytest.mark.parametrize(
    "rules",
    [
        (DeviceRule(True, "a", None, None, "rwm"),),
        (DeviceRule(True, "a", None, None, "rwm"), DeviceRule(False, "c", 195, 0, "rwm")),
        (DeviceRule(True, "c", None, 7, "rw"),),
    ],
)
def test_what_systemd_cannot_say_it_is_not_told(rules: tuple[DeviceRule, ...]) -> None:
    properties = device_properties(emulate(rules))
    assert [(p.name, p.value) for p in properties] == [("DevicePolicy", "auto"), ("DeviceAllow", ())]


def test_annotations() -> None:
    found = annotation_properties(
        {
            "org.systemd.property.TimeoutStopSec": "uint64 5",
            "org.systemd.property.RuntimeMaxSec": "1.5",
            "org.systemd.property.CollectMode": "'inactive-or-failed'",
            "org.systemd.property.StopUSec": "uint64 5",
            "org.systemd.properties": "nonsense",
        }
    )
    assert [(p.name, p.signature, p.value) for p in found] == [
        ("TimeoutStopUSec", "t", 5_000_000),
        ("RuntimeMaxUSec", "t", 1_500_000),
        ("CollectMode", "s", "inactive-or-failed"),
        ("StopUSec", "t", 5),
    ]


@pytest.mark.parametrize(
    ("name", "text"), [("A", "1"), ("Ab1", "1"), ("Foo", "what"), ("TimeoutStopSec", "'x'"), ("TimeoutStopSec", "-1")]
)
def test_annotations_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"annotations.org.systemd.property.{name}"):
        annotation_properties({f"org.systemd.property.{name}": text})


def test_an_annotation_replaces_what_we_would_say() -> None:
    writes = (CgroupWrite("memory.oom.group", "1", "w"),)
    found = values(unit_properties("c1", "a.slice", {"org.systemd.property.Description": "'mine'"}, writes))
    assert found["Description"] == "mine" and found["Slice"] == "a.slice" and found["OOMPolicy"] == "kill"
    assert found["Delegate"] is True and found["DefaultDependencies"] is False


def test_the_plan() -> None:
    config = set_path(base(), "linux.cgroupsPath", "a-b.slice:docker:c1")
    made = plan(set_path(config, "linux.resources.pids", {"limit": 3}), cgroup_manager="systemd")
    assert made.cgroup.path == "/sys/fs/cgroup/a.slice/a-b.slice/docker-c1.scope"
    assert made.cgroup.scope is not None and values(made.cgroup.scope.limits)["TasksMax"] == 3
    assert made.init.cgroup_path == made.cgroup.path
    assert "slice:prefix:name" in refusal(set_path(base(), "linux.cgroupsPath", "/x"), cgroup_manager="systemd")
    assert plan(base()).cgroup.scope is None


class Manager:
    """A service manager at a socket: answers calls by *answers* (values, a D-Bus error's name, or None for none)."""

    reason = "because"  # the text of its errors

    def __init__(self, path: Path) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.answers: dict[str, list[tuple[str, tuple[Any, ...]] | str | None]] = {}
        self.signals: list[tuple[int, str, str, str]] = []
        self.unnamed: list[bool] = []  # for each connection, whether it was left to us to see who it is
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

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
        if isinstance(answer, str):
            connection.sendall(message(dbus.ERROR, [(5, ("u", serial)), (4, ("s", answer))], "s", (self.reason,)))
            return
        for signal in self.signals:
            connection.sendall(message(dbus.SIGNAL, [(3, ("s", "JobRemoved"))], "uoss", signal))
        connection.sendall(message(dbus.METHOD_RETURN, [(5, ("u", serial))], *answer))

    def members(self) -> list[str]:
        return [member for member, _ in self.calls]

    def close(self) -> None:
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
    systemd.release(pid)
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
    with pytest.raises(GpurunError, match=r"cannot set resources.unified.io.weight: systemd refuses it of the unit u.scope"):
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
    with pytest.raises(GpurunError, match=r"systemd cannot be reached.*/a: no such file or directory; .*/b: no such"):
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
    with pytest.raises(GpurunError, match=r"your service manager cannot be reached \(.*/none: no such file.*enable-linger"):
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
    monkeypatch.setattr(Manager, "_answer", lambda self, connection, *_: connection.shutdown(socket.SHUT_RDWR))
    with pytest.raises(GpurunError, match="hung up"):
        systemd.set_properties("u.scope", (Property("TasksMax", "t", 1),))
