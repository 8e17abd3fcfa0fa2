"""Numbers and sizes that no program expects: each is told in one sentence, and one bad file never takes others down."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.files import parse_spec
from gpurun.criu import rpc
from gpurun.engine import state as store
from gpurun.engine.caller.bundle import read_bundle
from gpurun.errors import ConfigError, GpurunError
from gpurun.formats import dbus, protobuf, toml
from gpurun.ns.mount_plan import plan_devices
from gpurun.oci.config import Device
from gpurun.oci.reader import MAX_DOCUMENT
from tests.conftest import MakeBundle
from tests.native.runtime import Runtime

pytestmark = pytest.mark.attack("bad numbers and sizes", "one bad file or message stops what is not its own")

LONG = "9" * 5000


@pytest.mark.sweep(8)
@pytest.mark.native
@pytest.mark.gpurun_only
@pytest.mark.parametrize("field", ["pid", "start_time", "keeper", "oom_kills"])
@pytest.mark.parametrize("value", ["-5", LONG, str(1 << 80), "٣", "1_0", "0x10", "", " 1"])
def test_state_of_one_container(runtime: Runtime, bundle: MakeBundle, field: str, value: str) -> None:
    good = runtime.create(bundle().sh("sleep 100"))
    bad = runtime.create(bundle().sh("sleep 100"))
    path = runtime.root / bad.id / "state"
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{field}={value}\n" if line.startswith(f"{field}=") else f"{line}\n" for line in lines))
    listed = runtime("list", "--format", "json")
    assert good.id in listed.out and "internal error" not in listed.text
    said = runtime("state", bad.id)
    assert said.rc == 1 and "is damaged" in said.text
    assert runtime("delete", "--force", bad.id).rc == 0
    assert not (runtime.root / bad.id).exists()
    assert good.state()["status"] == "created"


def test_the_state_of_another_user(tmp_path: Path) -> None:
    """root deletes a container of a state root that somebody else has made, and runs that one's poststop hook."""
    if os.geteuid() != 0:
        pytest.skip("needs two users")
    directory = tmp_path / "x"
    directory.mkdir()
    os.chown(directory, 1000, 1000)
    with pytest.raises(GpurunError, match="belongs to user 1000"):
        store.load(str(tmp_path), "x")
    os.chown(tmp_path, 1000, 1000)
    with pytest.raises(GpurunError, match="belongs to user 1000"):
        store.make_directory(str(tmp_path), "y")
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("number", [LONG, "0x" + "f" * 5000, "0o" + "7" * 9000, "0b" + "1" * 20000, "1e999999", "-" + LONG])
@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_a_number_in_one_cdi_file(number: str, kind: str) -> None:
    node = f'{{"path": "/d", "major": {number}}}'  # JSON, which is YAML as well
    edits = f'{{"deviceNodes": [{node}]}}'
    text = f'{{"cdiVersion": "0.6.0", "kind": "a.b/c", "devices": [{{"name": "x", "containerEdits": {edits}}}]}}'
    if kind == "yaml":
        lines = ("cdiVersion: 0.6.0", "kind: a.b/c", "devices:", "- name: x", "  containerEdits:", "    deviceNodes:")
        text = "\n".join((*lines, "    - path: /d", f"      major: {number}", ""))
    with pytest.raises(ConfigError):
        parse_spec(text.encode(), f"/etc/cdi/x.{kind}")


@pytest.mark.parametrize("value", ["_1", "1_", "1__0", "+-1", "--1", LONG, "-", "+", "1.", "0x"])
def test_a_number_of_a_configuration(value: str) -> None:
    with pytest.raises(ConfigError):
        toml.parse(f"a = {value}\n", "config.toml")


@pytest.mark.parametrize(("major", "minor"), [(1, 1 << 31), (1, 1 << 20), (1 << 12, 0), ((1 << 32) - 1, 0)])
def test_numbers_of_a_device(major: int, minor: int) -> None:
    with pytest.raises(ConfigError, match="is not a valid device number"):
        plan_devices((Device("/dev/x", "c", major, minor),))


def message(*fields: tuple[int, tuple[str, Any]]) -> bytes:
    head = dbus.marshal("yyyyuua(yv)", (ord("l"), 2, 0, 1, 0, 1, fields))
    return bytes(head) + bytes(-len(head) % 8)


@pytest.mark.parametrize(
    "field", [(8, ("u", 7)), (5, ("s", "x")), (2, ("u", 1)), (3, ("ay", b"x")), (4, ("as", ())), (8, ("g", "v" * 250))]
)
def test_a_message_of_dbus(field: tuple[int, tuple[str, Any]]) -> None:
    with pytest.raises(ValueError, match="D-Bus"):
        dbus.take_message(message(field) + (b"\0" * 8 if field[0] == 8 else b""))


def test_a_message_of_dbus_is_not_nested_without_end() -> None:
    with pytest.raises(ValueError, match="D-Bus"):
        dbus.unmarshal("v", b"\x01v\0" * 5000)
    with pytest.raises(ValueError, match="D-Bus"):
        dbus.unmarshal("a" * 5000 + "y", b"\0" * 100)


@pytest.mark.parametrize("pid", [1 << 31, (1 << 64) - 1, 1 << 63])
def test_a_message_of_criu(pid: int) -> None:
    with pytest.raises(protobuf.BadMessage):
        rpc.answer(protobuf.message([(1, 7), (5, protobuf.message([(1, "post-restore"), (2, pid)]))]))


def test_a_number_of_more_than_64_bits_in_a_message_of_criu() -> None:
    with pytest.raises(protobuf.BadMessage):
        rpc.answer(b"\x08" + b"\xff" * 9 + b"\x7f")


@pytest.mark.parametrize("what", ["blanks", "annotation", "fifo"])
def test_a_config_that_takes_for_ever(tmp_path: Path, what: str) -> None:
    path = tmp_path / "config.json"
    if what == "fifo":
        os.mkfifo(path)
    elif what == "blanks":
        path.write_bytes(b" " * (60 << 20))
    else:
        path.write_text(json.dumps({"ociVersion": "1.0.2", "annotations": {"a": "\u00e9\n" * (10 << 20)}}))
    begin = time.monotonic()
    with pytest.raises(ConfigError, match="is a FIFO" if what == "fifo" else f"is larger than {MAX_DOCUMENT >> 20} MiB"):
        read_bundle(str(tmp_path))
    assert time.monotonic() - begin < 5


def test_blanks_below_the_limit_are_soon_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b" " * (MAX_DOCUMENT - 1))
    begin = time.monotonic()
    with pytest.raises(ConfigError, match="is empty"):
        read_bundle(str(tmp_path))
    assert time.monotonic() - begin < 5


@pytest.mark.native
@pytest.mark.gpurun_only
def test_sysctls_of_the_runtimes_own_network(runtime: Runtime, bundle: MakeBundle) -> None:
    b = bundle().namespace("network", "/proc/self/ns/net")
    b.linux["sysctl"] = {"net.ipv4.ip_default_ttl": "65"}
    before = Path("/proc/sys/net/ipv4/ip_default_ttl").read_text()
    assert 'sysctl "net.ipv4.ip_default_ttl" is not in a separate kernel namespace' in runtime.refused(b)
    assert Path("/proc/sys/net/ipv4/ip_default_ttl").read_text() == before


@pytest.mark.native
@pytest.mark.gpurun_only
def test_an_error_brings_no_escapes_to_a_terminal(runtime: Runtime, bundle: MakeBundle, tmp_path: Path) -> None:
    """Without a log file and with one: the names that errors tell are the image's."""
    b = bundle().args("/bin/\x1b]0;title\x07x")
    b.config["mounts"].append({"destination": "/mnt", "type": "bind", "source": "/no\x1b[2Jwhere", "options": ["bind"]})
    for options in ((), ("--log", str(tmp_path / "log"))):
        said = runtime.run(b, globals_=options)
        assert said.rc and "\x1b" not in said.text and "\x07" not in said.text, repr(said.text)
