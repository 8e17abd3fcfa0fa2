"""The systemd driver: scopes made, changed and stopped over D-Bus (what they are is in :mod:`gpurun.cgroup.scope`).

systemd makes no scope without a process in it.  The container's init cannot be that process: it would begin outside,
its cgroup namespace would have to wait, and it would start while systemd may still fail.  So a **placeholder**, a child of
ours that only sleeps, holds the scope until the init has been born in it, just as with a cgroup of our own making.

Its private socket is asked, with no bus daemon between (as systemctl does); else the bus.  Which systemd that is, the
system's or a user's, says :mod:`gpurun.cgroup.service_manager`; functions here take the text of an endpoint, "" being the
system's.

Reference: org.freedesktop.systemd1(5), "The Manager Object".
"""

from __future__ import annotations

import posix
from _stat import S_ISDIR
from errno import ECONNREFUSED, ECONNRESET, EPIPE
from time import monotonic, sleep

from gpurun.cgroup import placeholder
from gpurun.cgroup.dbus_connection import Bus, DBusError, DBusLost, DBusTimeout
from gpurun.cgroup.scope import Property, Scope
from gpurun.cgroup.service_manager import Endpoint, UserManager, parse_endpoint, system_endpoints, user_endpoints
from gpurun.errors import GpurunError, oserror_text
from gpurun.linux.procfs import in_user_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Seconds that systemd may take for a job, as runc gives it.
TIMEOUT = 30.0

#: Seconds for which a systemd that closes or refuses connections is asked again.  It does so while it is re-executed (an
#: update of its package does that), and keeps its units and its jobs meanwhile.
BACK = 20.0
_PAUSE = 0.02
_AWAY = (ECONNREFUSED, ECONNRESET, EPIPE)

_NAME = "org.freedesktop.systemd1"
_PATH = "/org/freedesktop/systemd1"
_MANAGER = "org.freedesktop.systemd1.Manager"
_UNSET = (1 << 64) - 1


def connect(manager: str = "") -> Bus:
    """A connection to the service manager.  Raises :class:`GpurunError` that says why there is none."""
    endpoints = (parse_endpoint(manager),) if manager else system_endpoints()
    return _connect(endpoints)[0]


def _connect(endpoints: tuple[Endpoint, ...]) -> tuple[Bus, Endpoint]:
    """A connection to the first of *endpoints* that answers, and which that is."""
    deadline = 0.0
    while True:
        failures, away = [], False
        for endpoint in endpoints:
            try:
                unnamed = endpoint.user and posix.geteuid() == 0 and in_user_namespace()
                return _greet(Bus(endpoint.address, TIMEOUT, unnamed), endpoint), endpoint
            except OSError as e:
                away = away or e.errno in _AWAY
                failures.append(f"{endpoint.address}: {oserror_text(OSError(e.errno, ''))}")
            except GpurunError as e:
                away = away or isinstance(e, DBusLost)
                failures.append(f"{endpoint.address}: {e}")
        deadline = deadline or monotonic() + BACK
        if not away or monotonic() >= deadline:
            break
        sleep(_PAUSE)
    tried = "; ".join(failures)
    if not endpoints or endpoints[0].user:
        raise GpurunError(
            f"--systemd-cgroup: cannot reach your systemd user manager ({tried or 'XDG_RUNTIME_DIR is not set'}): "
            "log in, or keep it running without a login (loginctl enable-linger) and set "
            "XDG_RUNTIME_DIR; or leave the option out"
        )
    raise GpurunError(
        f"--systemd-cgroup: cannot reach systemd ({tried}): check that this host runs it, or leave the option out"
    )


def _greet(bus: Bus, endpoint: Endpoint) -> Bus:
    """Say hello where a bus daemon is between, and ask for the signals that jobs end with."""
    if not endpoint.bus:
        return bus
    dbus = "org.freedesktop.DBus"
    bus.call(dbus, "/org/freedesktop/DBus", dbus, "Hello")
    rule = f"type='signal',sender='{_NAME}',interface='{_MANAGER}',member='JobRemoved'"
    bus.call(dbus, "/org/freedesktop/DBus", dbus, "AddMatch", "s", rule)
    call(bus, "Subscribe")
    return bus


def _ask(manager: str, act: Callable[[Bus], None]) -> None:
    """Call *act* with a connection, and with another one when systemd hangs up: what it does may be done twice."""
    deadline = monotonic() + BACK
    while True:
        bus = connect(manager)
        try:
            act(bus)
            return
        except DBusLost:
            if monotonic() >= deadline:
                raise
            sleep(_PAUSE)
        finally:
            bus.close()


def find_user_manager(root: str) -> UserManager:
    """The manager of the user who calls, in the cgroup tree at *root*.  Raises :class:`GpurunError` when there is none."""
    from gpurun.cgroup.tree import join_root
    from gpurun.linux.files import read_file

    bus, endpoint = _connect(user_endpoints(posix.environ, posix.geteuid()))
    try:
        cgroup = str(_property(bus, "ControlGroup"))
    finally:
        bus.close()
    try:
        controllers = read_file(f"{join_root(root, cgroup)}/cgroup.controllers", 4096).decode().split()
    except OSError as e:
        raise GpurunError(f"the cgroup of your service manager, {cgroup}: {oserror_text(OSError(e.errno, ''))}") from None
    return UserManager(endpoint, cgroup, tuple(controllers))


def enter(manager: str, *children: int) -> None:
    """Move this process and its *children* to where the user's *manager* may give out cgroups, unless it is there.

    The kernel lets no user move a process between cgroups whose common ancestor is not theirs, and a login session
    is beside the user's manager, not below it.  So we get a scope of our own there, as systemd-run(1) would make it.
    Raises :class:`GpurunError`.
    """
    from gpurun.cgroup.tree import own_cgroup

    pid = posix.getpid()
    properties = (Property("PIDs", "au", (pid, *children)), Property("Description", "s", "gpurun at work"))

    def move(bus: Bus) -> None:
        cgroup = str(_property(bus, "ControlGroup"))
        if not f"{own_cgroup()}/".startswith(f"{cgroup}/"):
            _start(bus, f"gpurun-{pid}.scope", properties)

    _ask(manager, move)


def call(bus: Bus, member: str, signature: str = "", *body: Any) -> tuple[Any, ...]:
    """Call a method of the manager."""
    return bus.call(_NAME, _PATH, _MANAGER, member, signature, *body)


def _property(bus: Bus, name: str, path: str = _PATH, interface: str = _MANAGER) -> Any:
    return bus.call(_NAME, path, "org.freedesktop.DBus.Properties", "Get", "ss", interface, name)[0][1]


def version(bus: Bus) -> int:
    """The version of systemd: 255 for ``v255.4-1`` or ``255 (255.4-1)``."""
    text = str(_property(bus, "Version"))
    digits = ""
    for letter in text.lstrip("v"):
        if not letter.isdigit():
            break
        digits += letter
    return int(digits or 0)


def start_scope(scope: Scope) -> int:
    """Make *scope*, held by a placeholder, whose pid is returned: the caller is to end it
    (:func:`gpurun.cgroup.placeholder.release`).

    A slice needs no process to hold it, and then 0 is returned.

    Raises :class:`GpurunError`; then there is no placeholder, and with it goes a unit that is made all the same, too late.
    A unit of that name that gpurun did not make is not touched.
    """
    pid = 0 if scope.unit.endswith(".slice") else placeholder.hold()
    properties = scope.properties
    if pid:
        properties += (Property("PIDs", "au", (pid,)),)
    asked = False

    def make(bus: Bus) -> None:
        nonlocal asked
        if asked and _is_made(bus, scope.unit, pid):
            return
        asked = True
        _start(bus, scope.unit, properties)

    try:
        _ask(scope.manager, make)
    except BaseException:
        placeholder.release(pid)
        raise
    return pid


def start_service(unit: str, properties: tuple[Property, ...]) -> None:
    """Start the transient service *unit* of the system's manager; returns when it runs.  Raises :class:`GpurunError`."""
    bus = connect()
    try:
        _start(bus, unit, properties)
    finally:
        bus.close()


def _is_made(bus: Bus, unit: str, pid: int) -> bool:
    """Whether systemd has made *unit* for us, of which it hung up before it could say so: with our *pid* in it, if any."""
    from gpurun.cgroup.tree import cgroup_of

    deadline = monotonic() + TIMEOUT
    interface = f"{_NAME}.Unit"
    while monotonic() < deadline:
        try:
            path = call(bus, "GetUnit", "s", unit)[0]
            job = _property(bus, "Job", path, interface)[0]
            state = _property(bus, "ActiveState", path, interface)
        except DBusError:
            return False  # NoSuchUnit
        if not job:
            return state == "active" and (not pid or cgroup_of(pid).endswith(f"/{unit}"))
        sleep(_PAUSE)
    raise DBusTimeout("no answer over D-Bus")


def _start(bus: Bus, unit: str, properties: tuple[Property, ...]) -> None:
    wire = _on_wire(_known(bus, properties))

    def start() -> tuple[Any, ...]:
        return call(bus, "StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "replace", wire, ())

    try:
        try:
            job = start()[0]
        except DBusError as e:
            if e.name != f"{_NAME}.UnitExists":
                raise
            # A failed unit stays loaded until it is reset; that one is of a container that is gone.
            _reset_failed(bus, unit)
            job = start()[0]
        result = _wait_job(bus, job)
    except DBusTimeout:
        raise GpurunError(f"Timeout waiting for systemd to create {unit}") from None
    except DBusError as e:
        if e.name == f"{_NAME}.UnitExists":
            raise GpurunError(f"Unit {unit} was already loaded or has a fragment file") from None
        raise GpurunError(f"cannot make the systemd unit {unit}: {e}") from None
    if result != "done":
        _reset_failed(bus, unit)
        raise GpurunError(f"error creating systemd unit `{unit}`: got `{result}`")


def _wait_job(bus: Bus, job: str) -> str:
    """Wait until *job* has ended; returns how: ``done``, ``failed``, ``canceled``, ``timeout``, ..."""
    deadline = monotonic() + TIMEOUT
    while True:
        _, path, _, result = bus.signal("JobRemoved", deadline).body
        if path == job:
            return str(result)


def _reset_failed(bus: Bus, unit: str) -> None:
    try:
        call(bus, "ResetFailedUnit", "s", unit)
    except DBusError:
        pass  # it has not failed, or is gone


def _known(bus: Bus, properties: tuple[Property, ...]) -> tuple[Property, ...]:
    """*properties* without those that this systemd is too old for; the version is only asked when that can matter."""
    if not any(one.since for one in properties):
        return properties
    have = version(bus)
    return tuple([one for one in properties if one.since <= have])


def _on_wire(properties: tuple[Property, ...]) -> tuple[tuple[str, tuple[str, Any]], ...]:
    return tuple([(one.name, (one.signature, one.value)) for one in properties])


def set_properties(unit: str, properties: tuple[Property, ...], manager: str = "") -> None:
    """Set *properties* of the unit until it ends.  Raises :class:`GpurunError` naming unit and reason."""
    if not properties:
        return

    def set_them(bus: Bus) -> None:
        call(bus, "SetUnitProperties", "sba(sv)", unit, True, _on_wire(_known(bus, properties)))

    try:
        _ask(manager, set_them)
    except (DBusError, DBusTimeout) as e:
        named = [one for one in properties if one.where and one.name in str(e)]
        if named:  # systemd says which one it refuses, in its words; who asked for it is ours to say
            raise GpurunError(f"cannot set {named[0].where}: systemd refuses it for the unit {unit}: {e}") from None
        asked = ", ".join(dict.fromkeys([one.name for one in properties]))
        raise GpurunError(f"cannot set properties of the systemd unit {unit} ({asked}): {e}") from None


def is_loaded(unit: str, manager: str = "") -> bool:
    """Whether systemd still has the transient *unit*, active or failed: it keeps a file for each."""
    directory = parse_endpoint(manager).transient if manager else system_endpoints()[0].transient
    if not directory:
        return True  # not known here: it is asked
    try:
        posix.stat(f"{directory}/{unit}")
    except FileNotFoundError:
        return False
    return True


def oom_facts(unit: str, manager: str = "") -> dict[str, int]:
    """``limit`` and ``peak`` in bytes of a *unit* that ended because memory was short, as systemd remembers it; else empty.

    It does so of a unit with the policy to end then (``memory.oom.group`` makes it have that), until the unit is reset.
    """
    if not is_loaded(unit, manager):
        return {}
    try:
        bus = connect(manager)
    except GpurunError:
        return {}
    try:
        path = call(bus, "GetUnit", "s", unit)[0]
        interface = f"{_NAME}.Scope"
        if _property(bus, "Result", path, interface) != "oom-kill":
            return {}
        found = (("limit", "MemoryMax"), ("peak", "MemoryPeak"))
        values = {name: int(_property(bus, asked, path, interface)) for name, asked in found}
        return {"kills": 0, **{name: value for name, value in values.items() if value < _UNSET}}
    except GpurunError:
        return {}  # forgotten by now, or a systemd that is too old to say
    finally:
        bus.close()


def stop_unit(unit: str, path: str, manager: str = "") -> None:
    """Stop *unit*, whose cgroup is the directory *path*, and forget that it failed, if it did.

    systemd ends what still runs in it.  Nothing is asked when unit and cgroup are gone, as they are most often: a scope goes
    with its last process.  Raises :class:`GpurunError`.
    """
    if not is_loaded(unit, manager) and not _is_directory(path):
        return

    def stop(bus: Bus) -> None:
        _quietly(lambda: _wait_job(bus, call(bus, "StopUnit", "ss", unit, "replace")[0]))
        _reset_failed(bus, unit)

    try:
        _ask(manager, stop)
    except DBusTimeout:
        raise GpurunError(f"Timeout waiting for systemd to stop {unit}") from None


def _quietly(stop: Callable[[], object]) -> None:
    try:
        stop()
    except DBusError as e:
        if e.name != f"{_NAME}.NoSuchUnit":
            raise


def _is_directory(path: str) -> bool:
    try:
        return S_ISDIR(posix.stat(path).st_mode)
    except FileNotFoundError:
        return False
