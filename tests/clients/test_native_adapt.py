"""tests/beds/native-adapt: what stands between a client and the runtime takes away only what no runtime can do here."""

from __future__ import annotations

import copy
import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "beds/native-adapt"
OWN = int(Path("/proc/self/oom_score_adj").read_text())


@pytest.fixture(scope="module")
def bed() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("native_adapt", str(PROGRAM))
    spec = importlib.util.spec_from_loader("native_adapt", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def adapted(
    bed: ModuleType, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], controllers: str = ""
) -> dict[str, Any]:
    """*config* as the runtime gets it where cgroup v2 has these *controllers* and root lacks CAP_SYS_RESOURCE."""
    monkeypatch.setattr(bed, "available_controllers", lambda: controllers.split())
    monkeypatch.setattr(bed, "missing_capabilities", lambda: {"CAP_SYS_RESOURCE"})
    changed = copy.deepcopy(config)
    bed.adapt(changed)
    return changed


@pytest.mark.parametrize(
    "config",
    [
        {"process": {"oomScoreAdj": 1000}},
        {"process": {"oomScoreAdj": OWN}},
        {"process": {"rlimits": [{"type": "RLIMIT_LOCKS", "soft": 1, "hard": 2}]}},
        {"process": {"rlimits": [{"type": "RLIMIT_NOFILE", "soft": 16, "hard": 32}]}},
        {"process": {"rlimits": [{"type": "RLIMIT_NO_SUCH", "soft": 16, "hard": 32}]}},
        {"process": {"capabilities": {"bounding": ["CAP_CHOWN", "CAP_NO_SUCH"]}}},
        {
            "process": {"capabilities": {"bounding": ["CAP_SYS_RESOURCE"]}},
            "linux": {"namespaces": [{"type": "user"}]},
        },
        {"linux": {"resources": {"cpu": {"shares": 0, "cpus": ""}, "memory": {"swap": -1}, "pids": {"limit": 0}}}},
        {"linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}], "unified": {}}}},
    ],
)
def test_what_a_runtime_can_do_is_left(bed: ModuleType, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]) -> None:
    config.setdefault("process", {}).setdefault("rlimits", [])
    assert adapted(bed, monkeypatch, config) == config


def test_a_limit_with_its_controller_is_left(bed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"linux": {"resources": {"cpu": {"shares": 512, "cpus": "0"}, "pids": {"limit": 20}}}}
    assert adapted(bed, monkeypatch, config, "cpu cpuset pids")["linux"] == config["linux"]
    assert adapted(bed, monkeypatch, config, "cpuset")["linux"]["resources"] == {"cpu": {"cpus": "0"}}
    assert adapted(bed, monkeypatch, config)["linux"]["resources"] == {}


def test_files_of_missing_controllers_go(bed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"linux": {"resources": {"unified": {"memory.oom.group": "1", "pids.max": "9", "cgroup.freeze": "0"}}}}
    found = adapted(bed, monkeypatch, config, "pids")["linux"]["resources"]["unified"]
    assert found == {"pids.max": "9", "cgroup.freeze": "0"}


def test_what_takes_a_privilege_goes(bed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    process = {
        "capabilities": {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"]},
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 1, "hard": 1 << 40}],
        "oomScoreAdj": -1000,
    }
    found = adapted(bed, monkeypatch, {"process": process})["process"]
    assert found["capabilities"] == {"bounding": ["CAP_CHOWN"]}
    assert found["rlimits"] == []  # more than the kernel's own limit, fs.nr_open
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    assert ("oomScoreAdj" in found) == bool(int(effective.split()[1], 16) >> 24 & 1)


def test_crun_wants_a_controller_for_what_limits_nothing(bed: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bed, "available_controllers", list)
    left = {name: {"linux": {"resources": {"blockIO": {"weight": 0}}}} for name in ("crun", "runc")}
    for name, config in left.items():
        bed.adapt(config, name)
    assert [config["linux"]["resources"] for config in left.values()] == [{}, {"blockIO": {"weight": 0}}]
