"""Intel's GPUs as CDI devices: both names, and what a runtime makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.cdi.document import read_document
from gpurun.cdi.write import to_value
from gpurun.commands.cdi_generate import generate_spec
from gpurun.errors import GpuError
from gpurun.gpu.intel.cdi import generate
from gpurun.gpu.nvidia.cdi.generated import GenerateOptions
from gpurun.gpu.nvidia.host.roots import Roots
from tests.needs_nodes import require_nodes
from tests.simcards import Host, intel


def test_each_gpu_has_both_names_and_what_is_written_can_be_read(tmp_path: Path) -> None:
    host = intel.arc(tmp_path)
    require_nodes(host.real_nodes)
    spec = generate(str(tmp_path))
    assert [device.name for device in spec.devices] == [
        "card0", "0000-03-00-0-0x56a0", "card1", "0000-04-00-0-0xe20b", "card3", "0000-07-00-1-0xe211",
    ]  # fmt: skip
    value = to_value(spec)
    assert value["devices"][1]["containerEdits"] == {
        "deviceNodes": [
            {"path": f"/dev/dri/{name}", "hostPath": f"{tmp_path}/dev/dri/{name}", "permissions": "rw", "gid": gid}
            for name, gid in (("card0", 44), ("renderD128", 992))
        ],
        "mounts": [
            {
                "hostPath": f"{tmp_path}/dev/dri/{name}",
                "containerPath": f"/dev/dri/by-path/pci-0000:03:00.0-{kind}",
                "options": ["bind", "rw", "nosuid", "noexec"],
            }
            for name, kind in (("card0", "card"), ("renderD128", "render"))
        ],
        "additionalGids": [44, 992],
    }
    assert read_document(value, "a file") == spec


def test_without_gpus(tmp_path: Path) -> None:
    with pytest.raises(GpuError, match="no GPU of Intel's"):
        generate(str(Host(tmp_path).path))


def test_the_command_writes_it(tmp_path: Path) -> None:
    host = intel.arc(tmp_path / "host")
    require_nodes(host.real_nodes)
    spec = generate_spec("intel", Roots(sysroot=str(host.path)), GenerateOptions(), host.env).spec
    assert (spec, spec.kind) == (generate(str(host.path)), "intel.com/gpu")
