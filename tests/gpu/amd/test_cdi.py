"""AMD's GPUs as CDI devices: gpurun's own file, and amd-ctk's byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.cdi.document import read_document
from gpurun.cdi.write import to_value
from gpurun.commands.cdi_generate import generate_file, generate_spec
from gpurun.errors import GpuError, UsageError
from gpurun.gpu.amd.cdi import amd_ctk_text, generate
from gpurun.gpu.nvidia.cdi.generated import GenerateOptions
from gpurun.gpu.nvidia.host.roots import Roots
from gpurun.invocation import Globals, Invocation
from tests.needs_nodes import require_nodes
from tests.simcards import KFD_MAJOR, Host, amd

#: amd-ctk's file for a host with one GPU, in the layout of Go's encoder: card before render, kfd last and without minor 0.
_AMD_JSON = """\
{
  "cdiVersion": "0.6.0",
  "kind": "amd.com/gpu",
  "devices": [
    {
      "name": "0",
      "containerEdits": {
        "deviceNodes": [
NODES
        ]
      }
    },
    {
      "name": "all",
      "containerEdits": {
        "deviceNodes": [
NODES
        ]
      }
    }
  ],
  "containerEdits": {}
}
"""
_AMD_NODE = """\
          {
            "path": "%s",
            "type": "c",
            "major": %d,%s
            "fileMode": 432,
            "permissions": "rwm",
            "uid": 0,
            "gid": %d
          }"""


@pytest.fixture
def one(tmp_path: Path) -> Host:
    return _with_nodes(amd.mi210(tmp_path, count=1))


def _with_nodes(host: Host) -> Host:
    require_nodes(host.real_nodes)
    return host


@pytest.mark.parametrize(("make", "count"), [(amd.mi210, 8), (amd.mi300x, 8)], ids=["mi210", "mi300x-cpx"])
def test_devices_are_amds_indices_and_all(make: Callable[[Path], Host], count: int, tmp_path: Path) -> None:
    spec = generate(str(_with_nodes(make(tmp_path)).path))
    assert (spec.kind, spec.version) == ("amd.com/gpu", "0.7.0")
    assert [device.name for device in spec.devices] == [*map(str, range(count)), "all"]
    paths = [[node.path for node in device.edits.device_nodes] for device in spec.devices]
    assert all(own[-1] == "/dev/kfd" and len(own) == 3 for own in paths[:-1])
    assert paths[-1] == [*[path for own in paths[:-1] for path in own[:-1]], "/dev/kfd"]
    assert read_document(to_value(spec), "a file") == spec


def test_a_device_has_its_nodes_their_groups_and_udevs_names(one: Host) -> None:
    assert to_value(generate(str(one.path)))["devices"][0]["containerEdits"] == {
        "deviceNodes": [
            {"path": path, "hostPath": f"{one.path}{path}", "permissions": "rw", "gid": gid}
            for path, gid in (("/dev/dri/card1", 44), ("/dev/dri/renderD128", 992), ("/dev/kfd", 992))
        ],
        "mounts": [
            {
                "hostPath": f"{one.path}/dev/dri/{name}",
                "containerPath": f"/dev/dri/by-path/pci-0000:63:00.0-{kind}",
                "options": ["bind", "rw", "nosuid", "noexec"],
            }
            for name, kind in (("card1", "card"), ("renderD128", "render"))
        ],
        "additionalGids": [44, 992],
    }


def test_amds_own_file_byte_for_byte(one: Host) -> None:
    nodes = (
        ("/dev/dri/card1", 226, '\n            "minor": 1,', 44),
        ("/dev/dri/renderD128", 226, '\n            "minor": 128,', 992),
        ("/dev/kfd", KFD_MAJOR, "", 992),
    )
    wanted = _AMD_JSON.replace("NODES", ",\n".join([_AMD_NODE % node for node in nodes]))
    assert amd_ctk_text(str(one.path)) == wanted
    assert read_document(json.loads(wanted), "a file").version == "0.6.0"


@pytest.mark.parametrize("make", [generate, amd_ctk_text])
def test_without_gpus(make: Callable[[str], object], tmp_path: Path) -> None:
    with pytest.raises(GpuError, match="no GPU of AMD's"):
        make(str(Host(tmp_path).path))


def _asked(**options: str) -> Invocation:
    return Invocation("cdi", ("generate",), dict(options), Globals("/run/gpurun"))


def test_the_command_writes_both(one: Host, tmp_path: Path) -> None:
    spec = generate_spec("amd", Roots(sysroot=str(one.path)), GenerateOptions(), one.env).spec
    assert spec == generate(str(one.path))
    file = tmp_path / "amd"
    assert generate_file(_asked(mode="amd", format="amd", output=str(file)), one.env) == 0
    assert (tmp_path / "amd.json").read_text() == amd_ctk_text(str(one.path))
    with pytest.raises(UsageError, match="needs --mode amd"):
        generate_file(_asked(format="amd"), one.env)
