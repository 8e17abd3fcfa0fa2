"""Which CDI file counts: directories, precedence, conflicts, bad files, stale files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.cdi.files import read_registry, read_spec_file, resolve_conflicts
from gpurun.errors import ConfigError
from gpurun.gpu.nvidia.cdi.stale import driver_versions, stale_files
from gpurun.gpu.nvidia.host.roots import Roots
from tests.simdriver import VERSION, SimulatedDriver

Write = Callable[..., Path]


def document(*names: str, kind: str = "v.com/d", **edits: Any) -> dict[str, Any]:
    devices = [{"name": name, "containerEdits": {"env": [f"D={name}"]}} for name in names]
    return {"cdiVersion": "1.1.0", "kind": kind, "devices": devices, "containerEdits": edits}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(name: str, *devices: str, **rest: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document(*devices, **rest)))
        return path

    return put


def look(tmp_path: Path, *dirs: str) -> tuple[dict[str, str], list[str]]:
    """device → file it is taken from, and the errors."""
    registry = read_registry(tuple([str(tmp_path / d) for d in dirs]))
    found = {name: found.file.path.removeprefix(f"{tmp_path}/") for name, found in registry.devices.items()}
    return found, [text.replace(f"{tmp_path}/", "") for _, text in registry.errors]


@pytest.mark.parametrize(
    ("files", "expected", "conflicts"),
    [
        ({"etc/a.json": "0"}, {"0": "etc/a.json"}, 0),
        ({"etc/a.json": "0", "run/a.json": "0"}, {"0": "run/a.json"}, 0),
        ({"etc/a.json": "0 1", "run/a.json": "0"}, {"0": "run/a.json", "1": "etc/a.json"}, 0),
        ({"etc/a.json": "0", "etc/b.json": "0 1"}, {"1": "etc/b.json"}, 1),
        ({"etc/a.json": "0", "etc/b.json": "0", "run/c.json": "0"}, {"0": "run/c.json"}, 0),
        ({"etc/a.json": "0", "run/b.json": "0", "run/c.json": "0"}, {}, 1),
        ({"etc/a.json": "0", "etc/b.json": "0", "etc/c.json": "0"}, {}, 1),
        (
            {"etc/a.yaml": "0", "etc/b.yml": "1", "etc/c.txt": "2", "etc/.json": "3"},
            {"0": "etc/a.yaml", "3": "etc/.json"},
            0,
        ),
    ],
)
def test_precedence_and_conflicts(
    tmp_path: Path, write: Write, files: dict[str, str], expected: dict[str, str], conflicts: int
) -> None:
    for name, devices in files.items():
        write(name, *devices.split())
    found, errors = look(tmp_path, "etc", "run")
    assert found == {f"v.com/d={device}": file for device, file in expected.items()}
    assert len(errors) == conflicts and all("conflicting device v.com/d=0: " in text for text in errors)


def test_the_order_of_the_directories_is_the_precedence(tmp_path: Path, write: Write) -> None:
    write("etc/a.json", "0")
    write("run/a.json", "0")
    assert look(tmp_path, "run", "etc")[0] == {"v.com/d=0": "etc/a.json"}


def test_one_directory_under_two_names_is_no_conflict(tmp_path: Path, write: Write) -> None:
    write("run/a.json", "0")
    (tmp_path / "var-run").symlink_to("run")
    assert look(tmp_path, "run", "var-run", "nowhere") == ({"v.com/d=0": "run/a.json"}, [])


def test_directories_are_not_searched_deeper(tmp_path: Path, write: Write) -> None:
    write("etc/a.json", "0")
    (tmp_path / "etc/sub.json").mkdir()
    found, errors = look(tmp_path, "etc")
    assert list(found) == ["v.com/d=0"] and errors == ["etc/sub.json: is not a file"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("{", "not valid JSON at line 1"),
        ('{"cdiVersion": "9.9.9", "kind": "a/b"}', "cdiVersion: invalid version"),
        ('{"cdiVersion": "0.5.0", "kind": "a/b", "devices": [], "extra": 1}', "extra: is unknown here"),
        ("[]", "must be an object, not an array"),
    ],
)
def test_a_bad_file_is_left_out_alone(tmp_path: Path, write: Write, content: str, words: str) -> None:
    write("etc/good.json", "0")
    write("etc/bad.json").write_text(content)
    found, errors = look(tmp_path, "etc")
    assert list(found) == ["v.com/d=0"] and len(errors) == 1 and errors[0].startswith("etc/bad.json") and words in errors[0]


def test_files_that_others_may_write_are_left_out(tmp_path: Path, write: Write) -> None:
    path = write("etc/a.json", "0")
    path.chmod(0o666)
    assert "may be written by others than root" in look(tmp_path, "etc")[1][0]
    path.chmod(0o644)
    assert look(tmp_path, "etc")[1] == []
    if os.geteuid() == 0:
        os.chown(path, 1234, 0)
        assert "chown root" in look(tmp_path, "etc")[1][0]


def test_a_fifo_does_not_block(tmp_path: Path, write: Write) -> None:
    write("etc/a.json", "0")
    os.mkfifo(tmp_path / "etc/b.json", 0o644)
    assert "is not a file" in look(tmp_path, "etc")[1][0]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_spec_file(str(tmp_path / "x.json"))


def hook(*args: str) -> dict[str, Any]:
    return {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", *args]}


def library(name: str) -> dict[str, Any]:
    return {"hostPath": f"/x/{name}", "containerPath": f"/usr/lib64/{name}", "options": ["bind"]}


@pytest.mark.parametrize(
    ("edits", "versions"),
    [
        ({}, ()),
        ({"mounts": [library("libcuda.so.550.54.14"), library("libnvidia-ml.so.550.54.14")]}, ("550.54.14",)),
        ({"mounts": [library("libfoo.so.1.2.3"), library("libcuda.so.1")]}, ()),
        ({"hooks": [hook("enable-cuda-compat", "--host-driver-version=1.2")]}, ("1.2",)),
        ({"hooks": [hook("enable-cuda-compat", "--host-driver-version", "1.2")]}, ("1.2",)),
        ({"hooks": [hook("enable-cuda-compat", "--host-driver-version")]}, ()),
        ({"hooks": [hook("x", "--host-driver-version=1.2")], "mounts": [library("libcuda.so.1.3")]}, ("1.2", "1.3")),
    ],
)
def test_the_driver_version_of_a_file(write: Write, edits: dict[str, Any], versions: tuple[str, ...]) -> None:
    assert driver_versions(read_spec_file(str(write("etc/a.json", "0", **edits)))) == versions


def test_stale_files(tmp_path: Path, write: Write, sim: SimulatedDriver) -> None:
    write("etc/old.json", "0", mounts=[library("libcuda.so.1.2.3")])
    write("etc/new.json", "1", mounts=[library(f"libcuda.so.{VERSION}")])
    write("etc/other.json", "2")
    registry = read_registry((str(tmp_path / "etc"),))
    assert stale_files(registry, Roots(sysroot=str(tmp_path))) == (), "no driver on this host: nothing to compare with"
    (text,) = stale_files(registry, Roots(sysroot=str(sim.path)))
    assert text.startswith(f"{tmp_path}/etc/old.json was written for the NVIDIA driver 1.2.3, this host runs {VERSION}: ")


def test_the_order_in_which_files_are_read_does_not_matter(tmp_path: Path, write: Write) -> None:
    write("etc/a.json", "0")
    write("run/a.json", "0")
    files = read_registry((str(tmp_path / "etc"), str(tmp_path / "run"))).files
    for order in (files, files[::-1]):
        devices, conflicts = resolve_conflicts(order)
        assert devices["v.com/d=0"].file.path == f"{tmp_path}/run/a.json" and not conflicts
