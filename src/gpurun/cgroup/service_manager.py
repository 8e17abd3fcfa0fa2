"""Which systemd makes a container's scope: the system's, or the service manager of a user; and where it is reached.

Root asks the system's.  Whoever is not root has a manager of their own (``user@UID.service``), to which the system has
delegated a part of the cgroup tree: their scopes are made there.  Root of a user namespace is either: the system's manager
is theirs where its socket is (a system container, with a systemd of its own), else they are a user who has become root in a
namespace, as under rootless Podman, and their manager is the user's.

Reference: systemd(1), user@.service(5), org.freedesktop.systemd1(5); D-Bus Specification, "Server Addresses".
"""

from __future__ import annotations

import posix

from gpurun.paths import runtime_directory
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PRIVATE_SOCKET = "/run/systemd/private"
SYSTEM_BUS = "/run/dbus/system_bus_socket"


class Endpoint(Record):
    """A socket at which a service manager can be spoken to: its own (*bus* is false), or that of a bus daemon.

    *address* begins with ``@`` in the abstract namespace.  *user*: it is a user's manager, not the system's.
    """

    address: str
    bus: bool = False
    user: bool = False

    @property
    def text(self) -> str:
        """For the state file; :func:`parse_endpoint` reads it."""
        return f"{'user' if self.user else 'system'} {'bus' if self.bus else 'private'} {self.address}"

    @property
    def transient(self) -> str:
        """The directory where the manager keeps a file for each transient unit that is loaded; "" if that is not known."""
        if not self.user:
            return "/run/systemd/transient"
        directory, _, name = self.address.rpartition("/")
        if name == "private":
            return f"{directory}/transient"
        return f"{directory}/systemd/transient" if name == "bus" else ""


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint whose :attr:`Endpoint.text` this is."""
    who, kind, address = text.split(" ", 2)
    return Endpoint(address, kind == "bus", who == "user")


def wants_user_manager(rootless: str, euid: int, in_user_namespace: Callable[[], bool]) -> bool:
    """Whether the caller's manager is a user's; *rootless* is the option, which decides for root of a user namespace."""
    if euid != 0:
        return True
    if rootless != "auto":
        return rootless in ("true", "1", "t", "T", "TRUE", "True")
    return in_user_namespace() and not any(_is_ours(path) for path in (PRIVATE_SOCKET, SYSTEM_BUS))


def _is_ours(path: str) -> bool:
    """Whether *path* is there and belongs to the root that we are: another's shows as the overflow id."""
    try:
        return posix.stat(path).st_uid == 0
    except OSError:
        return False


def system_endpoints() -> tuple[Endpoint, ...]:
    """Where root finds the system's manager, the best place first."""
    return (Endpoint(PRIVATE_SOCKET), Endpoint(SYSTEM_BUS, bus=True))


def user_endpoints(environ: Mapping[bytes, bytes], euid: int) -> tuple[Endpoint, ...]:
    """Where the user of *environ* may find their manager, the best place first: its own socket needs no bus daemon.

    Without XDG_RUNTIME_DIR (after su, for one) it is looked for where logind makes it.
    """
    found = []
    runtime = runtime_directory(environ.get(b"XDG_RUNTIME_DIR", b"").decode("utf-8", "surrogateescape"), euid)
    if runtime:
        found.append(Endpoint(f"{runtime}/systemd/private", user=True))
    for address in environ.get(b"DBUS_SESSION_BUS_ADDRESS", b"").decode("utf-8", "surrogateescape").split(";"):
        path = unix_address(address)
        if path:
            found.append(Endpoint(path, bus=True, user=True))
    if runtime:
        found.append(Endpoint(f"{runtime}/bus", bus=True, user=True))
    return tuple(dict.fromkeys(found))


def unix_address(address: str) -> str:
    """The socket of a D-Bus *address* like ``unix:path=/run/user/1000/bus``; "" for other transports."""
    transport, _, rest = address.partition(":")
    if transport != "unix":
        return ""
    for pair in rest.split(","):
        key, _, value = pair.partition("=")
        if key in ("path", "abstract") and value:
            return ("@" if key == "abstract" else "") + _unescape(value)
    return ""


def _unescape(text: str) -> str:
    first, *rest = text.split("%")
    raw = first.encode("utf-8", "surrogateescape")
    for part in rest:
        try:
            raw += bytes([int(part[:2], 16)]) + part[2:].encode("utf-8", "surrogateescape")
        except ValueError:
            return ""  # not an address
    return raw.decode("utf-8", "surrogateescape")


#: What to do for a limit whose controller the system keeps from users' managers.
NOT_DELEGATED = (
    "it is not delegated to your service manager, which root can change: systemctl edit user@.service, "
    '"[Service]", "Delegate=cpu cpuset io memory pids"; or remove the limit'
)


class UserManager(Record):
    """A user's manager as it was found; *cgroup* is its own, absolute in the tree, *controllers* those delegated to it."""

    endpoint: Endpoint
    cgroup: str
    controllers: tuple[str, ...]
