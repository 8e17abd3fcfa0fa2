"""An ordinary request imports what it needs: each module costs every GPU container a tenth of a millisecond or more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simdriver import Options, SimulatedDriver

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROGRAM = """
import json, sys
from gpurun.hook.gpu import gpu_edits
env, own = json.loads(sys.argv[1])
gpu_edits(tuple(env), {}, False, own, prepare=True)
print(json.dumps(sorted(m[12:] for m in sys.modules if m.startswith("gpurun.hook."))))
"""
#: What answers "these GPUs, these capabilities" on a host in order.
PLAIN = {
    "driver", "driver_files", "edits", "elf", "files", "gpu", "gpus", "host", "ldcache", "ldconf", "libraries", "nvidia",
    "request", "selection", "settings",
}  # fmt: skip


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
        (("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=11"), {"require"}),
        (("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_GDS=enabled"), {"request_extras", "extras", "extra_edits", "mig"}),
    ],
)
def test_what_a_request_imports(
    make_sim: Callable[[Options], SimulatedDriver], env: tuple[str, ...], more: set[str]
) -> None:
    host = make_sim(Options(gpus=8))
    if not host.real_nodes:
        pytest.skip("device nodes need root")
    assert imported(host, *env) == PLAIN | more


@pytest.mark.parametrize("env", [(), ("PATH=/bin",), ("NVIDIA_DRIVER_CAPABILITIES=all",), ("NVIDIA_VISIBLEST=1",)])
def test_who_asks_for_nothing_imports_nothing(tmp_path: Path, env: tuple[str, ...]) -> None:
    host = SimulatedDriver(tmp_path, Options(), False)
    words = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r})\n{PROGRAM}"]
    done = subprocess.run([*words, json.dumps([env, {}])], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["gpu"] and host
