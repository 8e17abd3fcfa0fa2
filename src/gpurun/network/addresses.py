"""Who has which address of gpurun's own networks: a file for each network in /run/gpurun-networks, changed under a lock.

An address is a container's for as long as ``<root>/<id>/network`` says so.  So a container whose state directory is gone,
whoever removed it, has no address, and nothing is promised to be cleaned up.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Any

from gpurun.errors import GpurunError, Step, StepError
from gpurun.linux.files import write_atomically
from gpurun.record import Record

DIRECTORY = "/run/gpurun-networks"
#: Networks get the first /24 of it that the host has no route to.
POOL = IPv4Network("10.201.0.0/16")
_PREFIX = 24
_LOCK_S = 30.0
_MAX = 1 << 20


class AddressHolder(Record):
    """The container *id* of the state directory *root*."""

    root: str
    id: str

    def has(self, address: str) -> bool:
        """Whether the container's own record still names *address*."""
        try:
            return bool(json.loads(Path(self.root, self.id, "network").read_bytes()[:_MAX])["address"] == address)
        except (OSError, ValueError, KeyError, TypeError):
            return False


class Addresses:
    """The addresses of the network *name*; ``with`` holds the lock of all networks.

    *subnet* is None for a network that nobody is on; *holders* are by address.  :meth:`save` writes what has changed.
    """

    def __init__(self, name: str, directory: str = DIRECTORY) -> None:
        self.name, self.directory = name, directory
        self.subnet: IPv4Network | None = None
        self.holders: dict[str, AddressHolder] = {}
        self._lock = -1

    @property
    def file(self) -> Path:
        return Path(self.directory, f"{self.name}.json")

    def __enter__(self) -> Addresses:
        """Take the lock and read; raises :class:`GpurunError`."""
        path = f"{self.directory}/lock"
        with Step("open the addresses of networks", path):
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(lock)
                    raise GpurunError(f"{path}: another gpurun has held it for {_LOCK_S:g} s") from None
            except OSError as e:
                os.close(lock)
                raise StepError("lock", path, e.errno) from None
            time.sleep(0.01)
        self._lock = lock
        self._read()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._lock)
        self._lock = -1

    def _read(self) -> None:
        try:
            document = json.loads(self.file.read_bytes()[:_MAX])
            self.subnet = IPv4Network(document["subnet"])
            held = {str(IPv4Address(a)): AddressHolder(str(h["root"]), str(h["id"])) for a, h in document["holders"].items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise GpurunError(f"{self.file}: cannot be read as the addresses of a network: {e}: remove it") from None
        self.holders = {address: holder for address, holder in held.items() if holder.has(address)}

    def save(self) -> None:
        """Write the file, or remove it when nobody is left; raises :class:`GpurunError`."""
        with Step("write", str(self.file)):
            if not self.holders:
                self.file.unlink(missing_ok=True)
                return
            held = {address: {"root": holder.root, "id": holder.id} for address, holder in self.holders.items()}
            text = json.dumps({"name": self.name, "subnet": str(self.subnet), "holders": held})
            write_atomically(str(self.file), text.encode(), 0o644)

    def take(self, holder: AddressHolder, taken: Iterable[IPv4Network]) -> str:
        """A free address for *holder*; a new network gets a subnet that none of those *taken* overlaps."""
        if self.subnet is None:
            self.subnet = free_subnet([*taken, *self._others()])
        for address in list(self.subnet.hosts())[1:]:  # the first is the bridge's
            if str(address) not in self.holders:
                self.holders[str(address)] = holder
                return str(address)
        raise GpurunError(f"--network: all addresses of {self.subnet} are taken: network {self.name} is full")

    def _others(self) -> list[IPv4Network]:
        found = []
        for path in Path(self.directory).glob("*.json"):
            try:
                document: Any = json.loads(path.read_bytes()[:_MAX])
                found.append(IPv4Network(document["subnet"]))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # said to whoever asks for that network
        return found


def free_subnet(taken: Iterable[IPv4Network]) -> IPv4Network:
    """The first subnet of :data:`POOL` that none of those *taken* overlaps; raises :class:`GpurunError`."""
    avoid = [net for net in taken if net.prefixlen]
    for subnet in POOL.subnets(new_prefix=_PREFIX):
        if not any(subnet.overlaps(net) for net in avoid):
            return subnet
    raise GpurunError(f"--network: this host has routes to all of {POOL}: no subnet is free")
