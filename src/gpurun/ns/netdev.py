"""``linux.netDevices``: devices of the host's network namespace that move into the container's (config-linux.md).

The kernel gives physical devices back to the host when the container's network namespace ends; virtual ones end with it.
"""

from __future__ import annotations

import posix

from gpurun.errors import ConfigError, GpurunError, StepError, strerror_lower
from gpurun.linux.files import O_CLOEXEC
from gpurun.linux.process import CLONE_NEWNET, setns
from gpurun.linux.rtnetlink import Address, RtNetlink
from gpurun.ns.child import run_in_child
from gpurun.ns.namespaces import NamespacePlan
from gpurun.oci.reader import as_object, get_string
from gpurun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_IFNAMSIZ = 16  # with the NUL


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
    target = posix.open(namespace, posix.O_RDONLY | O_CLOEXEC)
    try:
        moved = [_move(device, target) for device in devices]

        def in_container() -> None:
            setns(target, CLONE_NEWNET)
            for device, index, addresses in moved:
                _set_up(device, index, addresses)

        run_in_child(in_container)
    finally:
        posix.close(target)


def _move(device: NetDevice, target: int) -> tuple[NetDevice, int, tuple[Address, ...]]:
    link = RtNetlink()
    try:
        index = link.link_index(device.name)
        addresses = link.addresses(index)
        link.set_down(index)
        link.move(index, target, device.container_name)
    except OSError as e:
        if e.errno == 17:  # EEXIST
            raise GpurunError(
                f'linux.netDevices.{device.name}: the container has a device "{device.container_name}" already'
            ) from None
        raise StepError("linux.netDevices: move the network device", device.name, e.errno) from None
    finally:
        link.close()
    return device, index, addresses


def _set_up(device: NetDevice, index: int, addresses: tuple[Address, ...]) -> None:
    link = RtNetlink()
    try:
        for address in addresses:
            link.add_address(index, address)
        link.set_up(index)
    except OSError as e:
        raise GpurunError(f"linux.netDevices.{device.name}: set up in the container: {strerror_lower(e.errno)}") from None
    finally:
        link.close()
