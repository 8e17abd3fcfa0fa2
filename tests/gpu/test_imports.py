"""An ordinary request imports what it needs: each module costs every GPU container a tenth of a millisecond or more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.needs_nodes import require_nodes
from tests.simdriver import Options, SimulatedDriver

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROGRAM = """
import json, sys
from gpurun.gpu.resolve import Inquiry, gpu_edits, no_check
env, own = json.loads(sys.argv[1])
gpu_edits(Inquiry(tuple(env), {}, False, own, prepare=no_check))
rooms = ("gpurun.gpu.", "gpurun.cdi.", "gpurun.formats.", "gpurun.hook.")
files = [name for name, module in sys.modules.items() if name.startswith(rooms) and not hasattr(module, "__path__")]
print(json.dumps(sorted(name[7:] for name in files)))
"""
#: What answers "these GPUs, these capabilities" on a host in order.
PLAIN = {
    "gpu.resolve", "gpu.vendors", "gpu.request.injected", "gpu.nvidia.resolve", "gpu.nvidia.driver_answer",
    "gpu.nvidia.host.device_numbers",
    "gpu.nvidia.request.environment", "gpu.nvidia.request.records", "gpu.nvidia.request.selection",
    "gpu.nvidia.request.settings", "gpu.nvidia.host.driver", "gpu.nvidia.host.file_names", "gpu.nvidia.host.files",
    "gpu.nvidia.host.gpus", "gpu.nvidia.host.libraries", "gpu.nvidia.host.nodes", "gpu.host.reads",
    "gpu.host.access",
    "gpu.nvidia.host.roots", "gpu.nvidia.edits.driver", "gpu.nvidia.edits.files", "gpu.nvidia.edits.proc_files",
    "cdi.edits", "formats.elf", "formats.ldcache", "formats.ldconf",
}  # fmt: skip
#: What the engine imports, whatever a container asks.
ALWAYS = {"gpu.resolve", "gpu.vendors", "gpu.request.injected"}


def imported(host: SimulatedDriver, *env: str) -> set[str]:
    words = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n{PROGRAM}"]
    done = subprocess.run([*words, json.dumps([env, host.env])], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("env", "more"),
    [
        (("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"), set()),
        (("NVIDIA_VISIBLE_DEVICES=3,5",), set()),
        (("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"), set()),
        (("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=11"), {"gpu.nvidia.request.require"}),
        (
            ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDS=enabled"),
            {"gpu.nvidia.request.extras", "gpu.nvidia.host.extras", "gpu.nvidia.edits.extras", "gpu.nvidia.host.mig"},
        ),
    ],
)
def test_what_a_request_imports(
    make_sim: Callable[[Options], SimulatedDriver], env: tuple[str, ...], more: set[str]
) -> None:
    host = make_sim(Options(gpus=8))
    require_nodes(host.real_nodes)
    assert imported(host, *env) == PLAIN | more


@pytest.mark.parametrize("env", [(), ("PATH=/bin",), ("NVIDIA_DRIVER_CAPABILITIES=all",), ("NVIDIA_VISIBLEST=1",)])
def test_who_asks_for_nothing_imports_nothing(tmp_path: Path, env: tuple[str, ...]) -> None:
    host = SimulatedDriver(tmp_path, Options(), False)
    words = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n{PROGRAM}"]
    done = subprocess.run([*words, json.dumps([env, {}])], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == ALWAYS and host
