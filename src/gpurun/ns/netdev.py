"""``linux.netDevices``: devices of the host's network namespace that move into the container's (config-linux.md).

The kernel gives physical devices back to the host when the container's network namespace ends; virtual ones end with it.

pyroute2 speaks rtnetlink(7).  It and asyncio, which it needs, take about 100 ms to import, so only a container that is given
a device imports them, in the caller: the starter, the init and the container's memory never have them.  It starts no thread,
and each :class:`IPRoute` has an event loop and a socket of its own, so the child that joins the container's namespace makes
one there.
"""

from __future__ import annotations

import posix
from errno import EEXIST

from gpurun.errors import ConfigError, GpurunError, StepError, strerror_lower
from gpurun.linux.files import O_CLOEXEC, Fd
from gpurun.linux.process import CLONE_NEWNET, setns
from gpurun.ns.helper_process import run_in_child
from gpurun.ns.namespaces import NamespacePlan
from gpurun.oci.reader import as_object, get_string
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_IFNAMSIZ = 16  # with the NUL
_IFA_F_PERMANENT = 0x80
_RT_SCOPE_UNIVERSE = 0


class NetDevice(Record):
    """A device by its *name* on the host, and the name it gets in the container."""

    name: str
    container_name: str


def plan_net_devices(devices: dict[str, Any] | None, namespaces: NamespacePlan) -> tuple[NetDevice, ...]:
    """The devices to move; raises :class:`ConfigError` for impossible names and where there is no place to move them to."""
    if not devices:
        return ()
    where = "linux.netDevices"
    if not namespaces.has(CLONE_NEWNET):
        raise ConfigError(where, "unable to move network devices without a private NET namespace")
    moved: list[NetDevice] = []
    for name, value in devices.items():
        at = f"{where}.{name}"
        target = get_string(as_object({} if value is None else value, at), "name", at) or name
        _check_name(name, at)
        _check_name(target, f"{at}.name")
        if any(m.container_name == target and "%" not in target for m in moved):
            raise ConfigError(f"{at}.name", f'"{target}" is the name of another device in the container')
        moved.append(NetDevice(name, target))
    return tuple(moved)


def _check_name(name: str, where: str) -> None:
    if not name or len(name.encode()) >= _IFNAMSIZ or name in (".", "..") or any(c in "/: \t\n\v\f\r" for c in name):
        raise ConfigError(
            where, f'invalid network device name "{name}", it must have 1 to 15 characters, no "/", ":" or blank'
        )


def move_devices(devices: tuple[NetDevice, ...], namespace: str) -> None:
    """Move *devices* from our network namespace into the one that the file *namespace* names, and set them up there.

    Each keeps its permanent global addresses.  Raises :class:`GpurunError`; devices moved until then stay where they are,
    and come back (or end) with that namespace.
    """
    with Fd(posix.open(namespace, posix.O_RDONLY | O_CLOEXEC)) as target:
        moved = [_move(device, target) for device in devices]

        def in_container() -> None:
            setns(target, CLONE_NEWNET)
            for device, index, addresses in moved:
                _set_up(device, index, addresses)

        run_in_child(in_container)


def _move(device: NetDevice, target: int) -> tuple[NetDevice, int, tuple[dict[str, Any], ...]]:
    """(device, its index, its addresses as pyroute2 adds them); the index is kept by the move."""
    from pyroute2.iproute.linux import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as link:
            index = int(link.link("get", ifname=device.name)[0]["index"])
            addresses = tuple(_permanent(link.get_addr(index=index)))
            link.link("set", index=index, state="down")
            link.link("set", index=index, net_ns_fd=target, ifname=device.container_name)
    except NetlinkError as e:
        if e.code == EEXIST:
            raise GpurunError(
                f'linux.netDevices.{device.name}: the container has a device "{device.container_name}" already'
            ) from None
        raise StepError("linux.netDevices: move the network device", device.name, e.code) from None
    except OSError as e:
        raise StepError("linux.netDevices: move the network device", device.name, e.errno) from None
    return device, index, addresses


def _permanent(messages: Any) -> Iterator[dict[str, Any]]:
    """The permanent addresses of global scope: those that are lost when their device is moved."""
    for message in messages:
        flags = message.get_attr("IFA_FLAGS")
        if message["scope"] == _RT_SCOPE_UNIVERSE and (message["flags"] if flags is None else flags) & _IFA_F_PERMANENT:
            given = {name: message.get_attr(f"IFA_{name.upper()}") for name in ("address", "local", "broadcast")}
            kept = {name: value for name, value in given.items() if value is not None}
            yield {"family": message["family"], "prefixlen": message["prefixlen"], **kept}


def _set_up(device: NetDevice, index: int, addresses: tuple[dict[str, Any], ...]) -> None:
    from pyroute2.iproute.linux import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as link:
            for address in addresses:
                link.addr("add", index=index, **address)
            link.link("set", index=index, state="up")
    except (NetlinkError, OSError) as e:
        code = e.errno if isinstance(e, OSError) else e.code
        raise GpurunError(f"linux.netDevices.{device.name}: set up in the container: {strerror_lower(code)}") from None
