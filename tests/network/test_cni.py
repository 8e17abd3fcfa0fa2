"""Network plugins, called as the specification says: those of this machine, and some that fail."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.network import cni
from gpurun.network.attach import attach
from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

PLUGIN = """#!/bin/sh
cat > "{log}.$CNI_COMMAND.$$"
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_NETNS $(basename "$0")" >> "{log}"
case "$CNI_COMMAND" in {fails}) echo '{{"code": 7, "msg": "no addresses", "details": "are left"}}'; exit 1;; esac
echo '{{"cniVersion": "1.0.0", "ips": [{{"address": "10.1.2.3/24"}}]}}'
"""


def plugin(directory: Path, name: str, fails: str = "never") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(PLUGIN.format(log=directory.parent / "log", fails=fails))
    (directory / name).chmod(0o755)
    return directory


def network(*kinds: str) -> cni.Network:
    return cni.Network("web", "/f", {"name": "web", "cniVersion": "1.0.0", "plugins": [{"type": kind} for kind in kinds]})


ATTACHMENT = cni.Attachment("c1", "/run/netns/c1")


def test_a_list_is_called_in_its_order_and_back(tmp_path: Path) -> None:
    directory = str(plugin(plugin(tmp_path / "bin", "one").parent / "bin", "two"))
    result = cni.add(network("one", "two"), ATTACHMENT, (directory,))
    assert result["ips"][0]["address"] == "10.1.2.3/24"
    assert cni.remove(network("one", "two"), ATTACHMENT, (directory,)) == ()
    assert (tmp_path / "log").read_text().splitlines() == [
        f"{command} c1 eth0 /run/netns/c1 {name}"
        for command, name in (("ADD", "one"), ("ADD", "two"), ("DEL", "two"), ("DEL", "one"))
    ]  # fmt: skip
    told = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("log.ADD.*"))]
    assert sorted("prevResult" in one for one in told) == [False, True]
    assert all(one["name"] == "web" and one["cniVersion"] == "1.0.0" for one in told)


def test_what_fails_is_taken_back(tmp_path: Path) -> None:
    plugin(tmp_path / "bin", "one")
    directory = str(plugin(tmp_path / "bin", "two", fails="ADD"))
    with pytest.raises(GpurunError, match="network web: the plugin two fails at ADD: no addresses are left"):
        cni.add(network("one", "two"), ATTACHMENT, (directory,))
    assert [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()] == ["ADD", "ADD", "DEL", "DEL"]
    plugin(tmp_path / "bin", "one", fails="DEL")
    assert cni.remove(network("one"), ATTACHMENT, (directory,)) == (
        "network web: the plugin one fails at DEL: no addresses are left",
    )


@pytest.mark.parametrize("kind", ["nowhere", "../evil", "", "/bin/true"])
def test_plugins_that_there_are_not(tmp_path: Path, kind: str) -> None:
    with pytest.raises(GpurunError, match=r"is in none of|is not the name of a plugin"):
        cni.add(network(kind), ATTACHMENT, (str(tmp_path),))


def test_the_networks_that_are_configured(tmp_path: Path) -> None:
    assert cni.networks(str(tmp_path / "nowhere")) == []
    (tmp_path / "20-b.conflist").write_text(json.dumps({"name": "b", "plugins": [{"type": "bridge"}]}))
    (tmp_path / "10-a.conf").write_text(json.dumps({"name": "a", "cniVersion": "0.4.0", "type": "ptp"}))
    (tmp_path / "README").write_text("no network")
    assert [(one.name, one.document["plugins"][0]["type"]) for one in cni.networks(str(tmp_path))] == [
        ("a", "ptp"),
        ("b", "bridge"),
    ]
    for damaged in ("{", "[]", '{"name": "x"}', '{"plugins": []}', '{"plugins": [1]}'):
        (tmp_path / "30.conflist").write_text(damaged)
        with pytest.raises(GpurunError, match=r"30\.conflist"):
            cni.networks(str(tmp_path))


def test_a_machine_without_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cni.has_plugins((str(tmp_path / "none"), str(tmp_path)))
    assert cni.has_plugins((str(plugin(tmp_path / "bin", "one")),))
    monkeypatch.setattr(cni, "has_plugins", lambda: False)
    with pytest.raises(
        GpurunError, match=r"there are none in /opt/cni/bin, .*\(`apt-get install containernetworking-plugins`\)"
    ):
        attach(str(tmp_path), "c1", os.getpid(), "web")
    assert not (tmp_path / "c1").exists()


def test_configurations_are_read_with_a_bound(tmp_path: Path) -> None:
    (tmp_path / "10-a.conf").write_text("[" * 100_000)
    with pytest.raises(GpurunError, match=r"10-a\.conf: cannot be read"):
        cni.networks(str(tmp_path))
    os.remove(tmp_path / "10-a.conf")
    os.mkfifo(tmp_path / "20-b.conf")
    with pytest.raises(GpurunError, match=r"20-b\.conf: cannot be read"):
        cni.networks(str(tmp_path))


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[str]:
    """A network of the bridge plugin of this machine, in /etc/cni/net.d for as long as the test lasts."""
    if not any(os.access(f"{directory}/bridge", os.X_OK) for directory in cni.PLUGINS):
        pytest.skip("containernetworking-plugins is not installed")
    name = f"gtest{os.getpid()}"
    document: dict[str, Any] = {
        "name": name, "cniVersion": "1.0.0",
        "plugins": [{
            "type": "bridge", "bridge": name, "isGateway": True,
            "ipam": {"type": "host-local", "subnet": "10.231.77.0/24", "dataDir": str(tmp_path),
                     "routes": [{"dst": "0.0.0.0/0"}]},
        }],
    }  # fmt: skip
    path = Path(cni.CONFIGURATIONS, f"99-{name}.conflist")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    yield name
    path.unlink()
    subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


@pytest.mark.native
@pytest.mark.gpurun_only
def test_a_container_on_a_network(runtime: Runtime, bundle: MakeBundle, configured: str, tmp_path: Path) -> None:
    said = runtime.output(bundle().sh("ip -4 -o addr show eth0; ip route"), "--network", configured)
    assert "10.231.77.2/24" in said and "default via 10.231.77.1 dev eth0" in said
    left = [name for name in os.listdir(tmp_path / configured) if name[0].isdigit()]
    assert left == [], "the address is free again"
    assert (
        "netns"
        not in subprocess.run(["grep", str(runtime.root), "/proc/self/mounts"], capture_output=True, text=True).stdout
    )


@pytest.mark.native
@pytest.mark.gpurun_only
def test_detached_and_deleted(runtime: Runtime, bundle: MakeBundle, configured: str, tmp_path: Path) -> None:
    container = runtime.create(bundle().args("sleep", "60"), "--network", configured, detach=True)
    assert (tmp_path / configured / "10.231.77.2").exists()
    assert container.delete("--force").rc == 0
    assert not (tmp_path / configured / "10.231.77.2").exists()


@pytest.mark.native
@pytest.mark.gpurun_only
def test_networks_that_there_are_not(runtime: Runtime, bundle: MakeBundle, configured: str) -> None:
    done = runtime.run(bundle().args("true"), "--network", "nowhere")
    assert (
        done.rc == 1 and f'no network "nowhere" in {cni.CONFIGURATIONS}: there are ' in done.text and configured in done.text
    )
    b = bundle().args("true")
    b.linux["namespaces"] = [one for one in b.linux["namespaces"] if one["type"] != "network"]
    assert "the container has no network namespace of its own" in runtime.run(b, "--network", configured).text
