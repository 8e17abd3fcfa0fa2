"""``gpurun gpu explain``: a bundle or variables in, every thing with its reason out, and what is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.__main__ import main
from gpurun.cdi.edits import Chmod, ContainerEdits, DeviceClass, DeviceNode, FileEdit, ForwardCompat, Hook, ProcTree
from gpurun.gpu.explain import edit_items
from tests.native.bundle import base_config
from tests.needs_nodes import needs_nodes
from tests.simdriver import VERSION, Options, SimulatedDriver, bus_id, make, make_tegra, make_wsl, minor, uuid


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "NVIDIA_CTK_CONFIG_FILE_PATH"):
        monkeypatch.delenv(name, raising=False)
    path = make(tmp_path / "host", Options(nodes=False)).path
    monkeypatch.setenv("GPURUN_SYSROOT", str(path))
    return path


def call(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["gpurun", "gpu", "explain", *args])
    out, err = capfd.readouterr()
    return code, out, err


def document(capfd: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(call(capfd, "--json", *args)[1])
    return made


def test_variables(capfd: pytest.CaptureFixture[str]) -> None:
    answer = document(capfd, "NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=utility")
    assert answer["request"]["devices"] == ["1"] and answer["request"]["capabilities"] == ["utility"]
    assert answer["driverVersion"] == VERSION and answer["error"] == ""
    items = {item["path"]: item for item in answer["items"]}
    assert items[f"/dev/nvidia{minor(1, 2)}"]["reason"] == f"c 195:{minor(1, 2)} may rw: GPU 1 (NVIDIA_VISIBLE_DEVICES)"
    assert f"/proc/driver/nvidia/gpus/{bus_id(1)}" in items and f"/proc/driver/nvidia/gpus/{bus_id(0)}" not in items
    assert all(item["reason"] or item["kind"] == "cache" for item in answer["items"])
    assert {i["kind"] for i in answer["items"]} == {"node", "file", "link", "cache", "image file", "private"}
    missing = {m["what"]: m["reason"] for m in answer["missing"]}
    assert missing[f"libnvidia-nscq.so.{VERSION}"] == "library of capability utility"
    assert f"libnvidia-ml.so.{VERSION}" not in missing


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("free:9", "9 GPUs wanted, this host has 2"),
        ("free;profile=1g.10gb", "1 MIG device of profile 1g.10gb wanted, this host has no MIG device"),
        ("free:2;product=Tesla*", "2 GPUs wanted, 0 of 2 free: GPU 0: it is a "),
    ],
)
def test_more_than_the_host_has(capfd: pytest.CaptureFixture[str], asked: str, words: str) -> None:
    assert words in document(capfd, f"NVIDIA_VISIBLE_DEVICES={asked}")["error"]


@needs_nodes
@pytest.mark.parametrize("made", [make_wsl, make_tegra])
def test_a_platform(
    made: Callable[[Path], SimulatedDriver],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its driver is none of which a table says what it could have as well."""
    monkeypatch.setenv("GPURUN_SYSROOT", str(made(tmp_path / "platform").path))
    code, out, err = call(capfd, "--json", "NVIDIA_VISIBLE_DEVICES=all")
    answer = json.loads(out)
    assert (code, err, answer["error"], answer["missing"], answer["driverVersion"]) == (0, "", "", [], "")
    assert [item for item in answer["items"] if item["kind"] == "node"]


def test_text(capfd: pytest.CaptureFixture[str]) -> None:
    words = (f"NVIDIA_VISIBLE_DEVICES={uuid(0)}", "NVIDIA_REQUIRE_CUDA=driver>=1", "NVIDIA_DRIVER_CAPABILITIES=all")
    code, out, _ = call(capfd, *words)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "asked for by NVIDIA_VISIBLE_DEVICES" and "  requirement: driver>=1" in lines
    titles = [line for line in lines if not line.startswith(" ")]
    assert titles[:3] == [
        "asked for by NVIDIA_VISIBLE_DEVICES",
        "device nodes, allowed in the device cgroup",
        "files and programs, bound from the host",
    ]
    assert titles[-1] == "not on this host"
    assert "  all 32-bit libraries   (capability compat32: the driver was installed without them)" in lines


def test_what_create_would_refuse(capfd: pytest.CaptureFixture[str], host: Path) -> None:
    code, out, _ = call(capfd, "NVIDIA_VISIBLE_DEVICES=7")
    assert code == 1 and "asked for by NVIDIA_VISIBLE_DEVICES\n  devices: 7\n" in out
    assert "create would fail: 7: unknown device" in out
    assert "bogus" in document(capfd, "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=bogus")["error"]
    settings = host / "etc/nvidia-container-runtime/config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("broken")
    assert "config.toml" in document(capfd, "NVIDIA_VISIBLE_DEVICES=0")["error"]
    settings.write_text("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
    answer = document(capfd, "NVIDIA_VISIBLE_DEVICES=0")
    assert answer["error"] == "" and "unprivileged" in answer["request"]["denied"]
    assert [i["kind"] for i in answer["items"]] == ["warning"] and answer["missing"] == []


def test_nothing_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(capfd, "PATH=/bin")[:2] == (0, "no GPU is asked for: nothing is added\n")
    assert call(capfd, "NVIDIA_VISIBLE_DEVICES=void")[0] == 0


def test_a_bundle(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = base_config()
    config["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=0")
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = document(capfd, str(tmp_path))
    assert asked["request"]["devices"] == ["0"] and asked["items"]
    assert asked == document(capfd, "NVIDIA_VISIBLE_DEVICES=0", *[e for e in config["process"]["env"] if e.startswith("X")])


@pytest.mark.parametrize("args", [(), ("/nowhere",), ("/nowhere", "X=1"), ("a", "b")])
def test_wrong_usage(args: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capfd, *args)
    assert code == 1 and out == "" and err and "Traceback" not in err


def test_every_kind_of_edit_is_shown() -> None:
    edits = ContainerEdits(
        env=("A=b",),
        device_nodes=(DeviceNode("/dev/x", "/dev/y", "c", 1, 2, permissions="", reason="why"),),
        device_classes=(DeviceClass("c", 235, "rw", "all of them"),),
        image_files=(FileEdit("/etc/f", b"", reason="for ldconfig"),),
        forward_compat=ForwardCompat("/compat", "1.2", "newer ones"),
        chmods=(Chmod("/dev/x", 0o755, "asked for"),),
        proc_trees=(ProcTree("/proc/x", (FileEdit("/proc/x/f", b"", reason="made"),), (), "hidden"),),
        hooks=(Hook("createContainer", "/bin/hook", ("hook", "arg")),),
        additional_gids=(44,),
        warnings=("careful",),
    )
    assert [(i.kind, i.path, i.source, i.reason) for i in edit_items(edits)] == [
        ("environment", "A=b", "", ""),
        ("group", "44", "", "group of a device node that others may not open"),
        ("node", "/dev/x", "/dev/y", "c 1:2 may not be used: why"),
        ("class", "c 235:*", "", "may rw: all of them"),
        ("image file", "/etc/f", "", "for ldconfig"),
        ("compat", "/compat", "", "newer ones"),
        ("mode", "/dev/x", "0755", "asked for"),
        ("private", "/proc/x", "", "hidden"),
        ("private", "/proc/x/f", "", "made"),
        ("hook", "createContainer: hook arg", "/bin/hook", ""),
        ("warning", "careful", "", ""),
    ]
