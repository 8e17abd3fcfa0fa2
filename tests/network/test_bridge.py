"""Networks of gpurun's own, on hosts that have no network plugins."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.network import cni
from gpurun.network.addresses import DIRECTORY, POOL, Addresses, AddressHolder, free_subnet
from gpurun.network.bridge import bridge_name, check_name, device_name, ruleset
from tests.conftest import MakeBundle
from tests.native.runtime import Runtime


def test_a_subnet_that_the_host_has_no_route_to() -> None:
    assert str(free_subnet([])) == "10.201.0.0/24"
    taken = [IPv4Network(text) for text in ("10.201.0.0/23", "10.201.2.128/25", "192.0.2.0/24", "0.0.0.0/0")]
    assert str(free_subnet(taken)) == "10.201.3.0/24"
    with pytest.raises(GpurunError, match=r"routes to all of 10\.201\.0\.0/16"):
        free_subnet([IPv4Network("10.0.0.0/8")])


def holder(root: Path, container_id: str, address: str = "") -> AddressHolder:
    """A container, whose record names *address*."""
    (root / container_id).mkdir(parents=True)
    if address:
        (root / container_id / "network").write_text(json.dumps({"address": address}))
    return AddressHolder(str(root), container_id)


def test_addresses(tmp_path: Path) -> None:
    root, directory = tmp_path / "root", str(tmp_path / "networks")
    with Addresses("web", directory) as web:
        assert web.take(holder(root, "a", "10.201.0.2"), []) == "10.201.0.2"
        assert web.take(holder(root, "b", "10.201.0.3"), []) == "10.201.0.3"
        web.save()
    with Addresses("other", directory) as other:
        assert other.take(holder(root, "c", "10.201.1.2"), []) == "10.201.1.2", "a subnet of its own"
        other.save()
    shutil.rmtree(root / "a")
    with Addresses("web", directory) as web:
        assert set(web.holders) == {"10.201.0.3"}, "a container whose state is gone has no address"
        assert web.take(holder(root, "d", "10.201.0.2"), []) == "10.201.0.2"
        web.holders.clear()
        web.save()
    assert sorted(path.name for path in Path(directory).iterdir()) == ["lock", "other.json"]


def test_a_network_that_is_full(tmp_path: Path) -> None:
    with Addresses("web", str(tmp_path)) as web:
        for _ in range(253):
            web.take(AddressHolder("/run", "x"), [])
        with pytest.raises(GpurunError, match="network web is full"):
            web.take(AddressHolder("/run", "x"), [])


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"subnet": "x", "holders": {}}', '{"subnet": "10.0.0.0/24", "holders": 1}']
)
def test_a_damaged_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "web.json").write_text(text)
    with (
        pytest.raises(GpurunError, match=r"web\.json: cannot be read as the addresses of a network"),
        Addresses("web", str(tmp_path)),
    ):
        pass


def test_names() -> None:
    for name in ("web", "a", "A-1_b", "x" * 64):
        check_name(name)
        assert len(bridge_name(name)) <= 15
    for name in ("", "../x", "a b", "-x", "x" * 65, "a/b", 'a"b', "a\n"):
        with pytest.raises(GpurunError, match="is no name for a network"):
            check_name(name)
    assert bridge_name("web") == "gp-web" and bridge_name("x" * 13) != bridge_name("x" * 14)
    assert len(device_name("/run/gpurun", "c")) <= 15 and device_name("/a", "b") != device_name("/a/b", "")


def test_what_nft_is_told_is_nft() -> None:
    nft = shutil.which("nft")
    if nft is None or os.geteuid() != 0:
        pytest.skip("needs root and nftables")
    text = ruleset("web-1", "gp-web-1", POOL)
    done = subprocess.run(["unshare", "-n", nft, "-c", "-f", "-"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


class Host:
    """A host with a network of its own (192.0.2.1) and no plugins; beyond it 192.0.2.2, which has no route to containers."""

    def __init__(self, directory: Path) -> None:
        self.sleepers: list[subprocess.Popen[bytes]] = []
        self.here = self._enter("unshare", "-mn", "--propagation", "private", "sleep", "600")
        self.beyond = self._enter(*self.here, "unshare", "-n", "sleep", "600")
        for path in filter(os.path.isdir, cni.PLUGINS):
            self("mount", "-t", "tmpfs", "none", path)
        self.ip("link add ext0 type veth peer name ext1", "addr add 192.0.2.1/24 dev ext0", "link set ext0 up")
        self.ip(f"link set ext1 netns {self.sleepers[1].pid}")
        for text in ("addr add 192.0.2.2/24 dev ext1", "link set ext1 up"):
            subprocess.run([*self.beyond, "ip", *text.split()], check=True)
        self("sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward")
        self.network = f"t{secrets.token_hex(3)}"
        self.bridge = bridge_name(self.network)
        self.program = directory / "gpurun-there"

    def _enter(self, *command: str) -> list[str]:
        """How to be where *command* is, which ends as a sleep(1), as soon as it is there."""
        sleeper = subprocess.Popen(command)
        self.sleepers.append(sleeper)
        before = {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in ["self", *[one.pid for one in self.sleepers[:-1]]]}
        proc = Path(f"/proc/{sleeper.pid}")
        while (proc / "comm").read_text() != "sleep\n" or (proc / "ns/net").stat().st_ino in before:
            time.sleep(0.01)
        return ["nsenter", "-t", str(sleeper.pid), "-m", "-n"]

    def __call__(self, *command: str, check: bool = True) -> str:
        return subprocess.run([*self.here, *command], check=check, capture_output=True, text=True).stdout

    def ip(self, *commands: str) -> str:
        return "".join([self("ip", *text.split()) for text in commands])

    def put(self, runtime: Runtime, hide: str = "") -> None:
        """Let *runtime* be called there; *hide* is a program that is not."""
        if hide:
            for path in filter(os.path.exists, [f"{d}/{hide}" for d in ("/usr/sbin", "/usr/bin", "/usr/local/sbin")]):
                self("mount", "--bind", "/dev/null", path)
        self.program.write_text(f'#!/bin/sh\nexec {" ".join(self.here)} {runtime.path} "$@"\n')
        self.program.chmod(0o755)
        runtime.path = str(self.program)

    def devices(self) -> set[str]:
        return {line.split(":")[1].strip().partition("@")[0] for line in self.ip("-o link").splitlines()}

    def end(self) -> None:
        for sleeper in self.sleepers:
            sleeper.kill()
            sleeper.wait()


@pytest.fixture
def host(runtime: Runtime) -> Iterator[Host]:
    made = Host(runtime.directory)
    path = runtime.path
    yield made
    runtime.path = path
    runtime.cleanup()
    made.end()
    assert not Path(DIRECTORY, f"{made.network}.json").exists()


SERVER = """
import socket
s = socket.create_server(("", 81)); print("listening", flush=True)
c, (address, _) = s.accept(); print(address, "said", c.recv(99).decode(), end="")
"""
ADDRESS = "ip -4 addr show eth0; ip route"


@pytest.mark.native
@pytest.mark.gpurun_only
@pytest.mark.parametrize("user_namespace", [False, True])
def test_an_address_and_a_way_out(runtime: Runtime, bundle: MakeBundle, host: Host, user_namespace: bool) -> None:
    host.put(runtime)
    b = bundle().sh(ADDRESS)
    said = runtime.output(b.user_namespace() if user_namespace else b, "--network", host.network)
    assert "inet 10.201.0.2/24" in said and "default via 10.201.0.1 dev eth0" in said
    assert host.devices() == {"lo", "ext0"}, "the last one takes the bridge with it"
    assert "gpurun" not in host("nft", "list", "ruleset", check=False)


@pytest.mark.native
@pytest.mark.gpurun_only
def test_containers_and_what_is_beyond(runtime: Runtime, bundle: MakeBundle, host: Host) -> None:
    """Two containers reach each other, the host, and by its address what is beyond; nobody there begins to talk to them."""
    if not shutil.which("nft"):
        pytest.skip("nftables is not installed")
    host.put(runtime)
    first = runtime.create(bundle().sh("echo hello | nc -l -p 80"), "--network", host.network, detach=True)
    server = subprocess.Popen([*host.beyond, sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None and server.stdout.readline() == "listening\n"
    said = runtime.output(
        bundle().sh("sleep .5; nc 10.201.0.2 80 </dev/null; echo out | nc -w 1 192.0.2.2 81; ip -4 -o addr show eth0"),
        "--network", host.network,
    )  # fmt: skip
    assert "hello" in said and "10.201.0.3/24" in said
    assert server.communicate(timeout=20)[0] == "192.0.2.1 said out\n", "the host's address, not the container's"
    subprocess.run([*host.beyond, "ip", "route", "add", "10.201.0.0/24", "via", "192.0.2.1"], check=True)
    again = runtime.create(bundle().sh("echo secret | nc -l -p 80"), "--network", host.network, detach=True)
    asked = "import socket; socket.create_connection(('10.201.0.{}', 80), 1).recv(99)"
    for number in (2, 3):
        reached = subprocess.run([*host.beyond, sys.executable, "-c", asked.format(number)], capture_output=True, text=True)
        assert "timed out" in reached.stderr, reached
    assert again.delete("--force").rc == 0 and first.delete("--force").rc == 0
    assert host.devices() == {"lo", "ext0"}


@pytest.mark.native
@pytest.mark.gpurun_only
def test_killed_and_deleted(runtime: Runtime, bundle: MakeBundle, host: Host) -> None:
    host.put(runtime)
    made = [runtime.create(bundle().args("sleep", "60"), "--network", host.network, detach=True) for _ in range(2)]
    devices = {device_name(str(runtime.root), container.id) for container in made}
    assert host.devices() == {"lo", "ext0", host.bridge, *devices}
    os.kill(made[0].pid, 9)
    made[0].wait()
    assert made[0].delete().rc == 0
    assert host.devices() == {"lo", "ext0", host.bridge, device_name(str(runtime.root), made[1].id)}
    host.ip(f"link del {host.bridge}")  # someone has cleaned up too much: the next one makes it again
    said = runtime.output(bundle().sh(ADDRESS), "--network", host.network)
    assert "inet 10.201.0.2/24" in said
    assert made[1].delete("--force").rc == 0
    assert host.devices() == {"lo", "ext0"}


@pytest.mark.native
@pytest.mark.gpurun_only
def test_without_nft(runtime: Runtime, bundle: MakeBundle, host: Host) -> None:
    host.put(runtime, hide="nft")
    done = runtime.run(bundle().sh("ping -c 1 -w 2 10.201.0.1 >/dev/null; ip route"), "--network", host.network)
    assert done.rc == 0 and "default via 10.201.0.1" in done.out
    assert "containers reach this host and each other, and nothing beyond, because nft is not installed" in done.text
    assert host("cat", "/proc/sys/net/ipv4/ip_forward") == "0\n"


@pytest.mark.native
@pytest.mark.gpurun_only
def test_what_is_refused(runtime: Runtime, bundle: MakeBundle, host: Host) -> None:
    host.put(runtime)
    assert '"../x" is no name for a network' in runtime.run(bundle().args("true"), "--network", "../x").text
    for device in ("type veth peer name ext1", "type bridge"):
        host.ip(f"link add {host.bridge} {device}")
        done = runtime.run(bundle().args("true"), "--network", host.network)
        assert done.rc == 1 and f"this host has a device {host.bridge} that is not gpurun's" in done.text
        assert host.bridge in host.devices()
        host.ip(f"link del {host.bridge}")
    host.ip("route add 10.201.0.0/16 via 192.0.2.2")
    done = runtime.run(bundle().args("true"), "--network", host.network)
    assert done.rc == 1 and "routes to all of 10.201.0.0/16" in done.text
    assert host.devices() == {"lo", "ext0"}
