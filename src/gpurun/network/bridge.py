"""A network of gpurun's own, for machines without network plugins: a bridge, and a pair of devices for each container.

The bridge has the first address of its subnet and is each container's way out; nft(8), where it is installed, puts the
host's address in the place of theirs beyond the host.  All is made again where it is missing, and the last container that
leaves takes the bridge with it.  The container's end of a pair is made in its network namespace and ends with that.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from errno import EEXIST, ENODEV
from hashlib import blake2b
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from pyroute2.iproute.linux import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from gpurun.errors import GpurunError, StepError, shown
from gpurun.linux.process import CLONE_NEWNET, setns
from gpurun.ns.helper_process import run_in_child
from gpurun.record import Record

INTERFACE = "eth0"
_IFNAMSIZ = 16
_AF_INET = 2
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_NFT_TIMEOUT_S = 30


class Place(Record):
    """A container's place on the network *name*: its *address*, and the *device* of its pair that stays on the host."""

    name: str
    address: str
    device: str


def check_name(name: str) -> None:
    """Raise :class:`GpurunError` for what cannot be the name of a network."""
    if not _NAME.fullmatch(name):
        raise GpurunError(
            f'--network: "{shown(name)}" is no name for a network: it has 1 to 64 letters, digits, "-" and "_"'
        )


def bridge_name(name: str) -> str:
    """The bridge of the network *name*: at most 15 characters, another for each name."""
    readable = f"gp-{name}"
    return readable if len(readable) < _IFNAMSIZ else f"gp.{_digest(name, 6)}"


def device_name(root: str, container_id: str) -> str:
    """The host's end of a container's pair."""
    return f"gpv{_digest(f'{root}|{container_id}', 6)}"


def taken_subnets() -> list[IPv4Network]:
    """What this host has routes to, and so addresses in."""
    with IPRoute() as link:
        routes = [(route.get_attr("RTA_DST"), route["dst_len"]) for route in link.get_routes(family=_AF_INET)]
    return [IPv4Network(f"{destination}/{length}") for destination, length in routes if destination]


def join(place: Place, subnet: IPv4Network, namespace: int) -> tuple[str, ...]:
    """Put the container of the network namespace *namespace* (a descriptor) at its *place*; warnings.

    The caller holds the lock of :class:`gpurun.network.addresses.Addresses`.  Raises :class:`GpurunError`; :func:`leave`
    takes back what was made.
    """
    bridge = bridge_name(place.name)
    try:
        with IPRoute() as link:
            master = _bridge(link, bridge, subnet)
            peer = {"ifname": INTERFACE, "net_ns_fd": namespace}
            link.link("add", ifname=place.device, kind="veth", peer=peer)
            link.link("set", index=_index(link, place.device), master=master, state="up")
    except NetlinkError as e:
        raise _failed(f"connect {INTERFACE} to the bridge {bridge}", e) from None
    gateway = str(next(subnet.hosts()))

    def in_container() -> None:
        setns(namespace, CLONE_NEWNET)
        try:
            with IPRoute() as link:
                index = _index(link, INTERFACE)
                link.addr("add", index=index, address=place.address, prefixlen=subnet.prefixlen)
                link.link("set", index=index, state="up")
                link.route("add", dst="0.0.0.0/0", gateway=gateway)
        except NetlinkError as e:
            raise _failed(f"set up {INTERFACE} in the container", e) from None

    run_in_child(in_container)
    return _translate(place.name, bridge, subnet)


def leave(place: Place, last: bool) -> tuple[str, ...]:
    """Take back what :func:`join` has made, with the bridge when this was the *last* container; warnings."""
    bridge = bridge_name(place.name)
    try:
        with IPRoute() as link:
            _remove(link, place.device)
            if not last:
                return ()
            found = _find(link, bridge)
            if found is not None and _is_ours(found, bridge):
                if any(True for _ in link.get_links(master=int(found["index"]))):
                    return (f"network {place.name}: the bridge {bridge} stays, because it has devices of others",)
                _remove(link, bridge)
    except NetlinkError as e:
        return (str(_failed(f"take back the network {place.name}", e)),)
    nft = shutil.which("nft", path=_PATH)
    if nft:
        _nft(nft, f"add table ip {_table(place.name)}\ndelete table ip {_table(place.name)}\n")
    return ()


def _bridge(link: Any, name: str, subnet: IPv4Network) -> int:
    """The index of the bridge *name* with the first address of *subnet*, made where it is missing."""
    try:
        # An address of its own: the one that a bridge borrows from its ports changes when they come and go.
        link.link("add", ifname=name, kind="bridge", address=_hardware_address(name))
    except NetlinkError as e:
        if e.code != EEXIST:
            raise
    found = link.link("get", ifname=name)[0]
    if not _is_ours(found, name):
        raise GpurunError(f"--network: this host has a device {name} that is not gpurun's: choose another name")
    index = int(found["index"])
    try:
        link.addr("add", index=index, address=str(next(subnet.hosts())), prefixlen=subnet.prefixlen)
    except NetlinkError as e:
        if e.code != EEXIST:
            raise
    link.link("set", index=index, state="up")
    return index


def _is_ours(found: Any, name: str) -> bool:
    """Whether the device that was found by the *name* of a bridge of gpurun's is one."""
    kinds = [pair[1] for pair in (found.get_attr("IFLA_LINKINFO") or {}).get("attrs", []) if pair[0] == "IFLA_INFO_KIND"]
    return kinds == ["bridge"] and found.get_attr("IFLA_ADDRESS") == _hardware_address(name)


def _find(link: Any, name: str) -> Any:
    try:
        return link.link("get", ifname=name)[0]
    except NetlinkError as e:
        if e.code != ENODEV:
            raise
        return None


def _index(link: Any, name: str) -> int:
    return int(link.link("get", ifname=name)[0]["index"])


def _remove(link: Any, name: str) -> None:
    try:
        link.link("del", ifname=name)
    except NetlinkError as e:
        if e.code != ENODEV:  # it ended with the container's namespace
            raise


def _failed(step: str, error: NetlinkError) -> StepError:
    return StepError(f"--network: {step}", "", error.code)


def _translate(name: str, bridge: str, subnet: IPv4Network) -> tuple[str, ...]:
    """Let the containers reach what is beyond this host; a warning where they do not."""
    without = f"network {name}: containers reach this host and each other, and nothing beyond"
    nft = shutil.which("nft", path=_PATH)
    if not nft:
        return (f"{without}, because nft is not installed (`apt-get install nftables`)",)
    failed = _nft(nft, ruleset(name, bridge, subnet))
    if failed:
        return (f"{without}: nft: {shown(failed)}",)
    try:
        if _FORWARDING.read_text().strip() == "0":
            _FORWARDING.write_text("1")
    except OSError as e:
        return (f"{without}: {_FORWARDING} cannot be set: {(e.strerror or '').lower()}",)
    return ()


def ruleset(name: str, bridge: str, subnet: IPv4Network) -> str:
    """What nft is told: the host's address for the containers' beyond the host, and nobody beyond begins to talk to them."""
    table = _table(name)
    return f"""add table ip {table}
delete table ip {table}
table ip {table} {{
  chain postrouting {{
    type nat hook postrouting priority 100; policy accept;
    ip saddr {subnet} oifname != "{bridge}" masquerade
  }}
  chain forward {{
    type filter hook forward priority 0; policy accept;
    oifname "{bridge}" iifname != "{bridge}" ct state != {{ established, related }} drop
  }}
}}
"""


def _nft(program: str, text: str) -> str:
    """What nft says against *text*; empty when it has done it."""
    try:
        done = subprocess.run(
            [program, "-f", "-"], input=text, capture_output=True, text=True, timeout=_NFT_TIMEOUT_S, check=False,
            env={"PATH": _PATH},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer within {_NFT_TIMEOUT_S} s"
    except OSError as e:
        return (e.strerror or "cannot be run").lower()
    return (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[0] if done.returncode else ""


def _table(name: str) -> str:
    return f"gpurun-{name}"


def _digest(text: str, size: int) -> str:
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=size).hexdigest()


def _hardware_address(name: str) -> str:
    digest = _digest(name, 5)
    return ":".join(["02", *[digest[at : at + 2] for at in range(0, 10, 2)]])
