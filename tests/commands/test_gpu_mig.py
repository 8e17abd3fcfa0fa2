"""gpu mig: its words, options and variables, and what they do to a simulated host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.cli.parse import parse
from gpurun.gpu.nvidia.mig.config import read_configs
from gpurun.gpu.nvidia.mig.export import as_yaml, export_config
from gpurun.gpu.nvidia.mig.plan import plan_config
from gpurun.gpu.nvidia.mig.state import Instance, MigGpu
from gpurun.record import replace
from tests.gpu.nvidia.mig.hosts import MigHost
from tests.gpu.nvidia.mig.test_plan import GPU, T4
from tests.source_tree import PACKAGE

CONFIG = """
version: v1
mig-configs:
  off: [{devices: all, mig-enabled: false}]
  balanced:
  - devices: all
    mig-enabled: true
    mig-devices: {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2}
"""


def gpurun(host: MigHost, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    everything = {"PYTHONPATH": str(PACKAGE.parent), "PATH": os.environ["PATH"], **host.driver.env, **env}
    command = [sys.executable, "-m", "gpurun", "gpu", "mig", *words]
    done = subprocess.run(command, env=everything, input=stdin, capture_output=True, text=True, timeout=120, check=False)
    done.stderr = done.stderr.replace('\\"', '"')  # as the log has them
    return done


def test_short_names_are_those_of_mig_parted() -> None:
    """-f is --format for other commands below gpu."""
    assert parse(["gpu", "mig", "apply", "-f", "FILE", "-c", "NAME", "-m", "-s"]).options == {
        "config-file": "FILE", "selected-config": "NAME", "mode-only": True, "skip-reset": True,
    }  # fmt: skip
    assert parse(["gpu", "-f", "FILE", "mig", "apply"]).options == {"config-file": "FILE"}
    assert parse(["gpu", "mig", "export", "-o", "json", "-l", "x"]).options == {"output-format": "json", "config-label": "x"}
    assert parse(["gpu", "list", "-f", "json"]).options == {"format": "json"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root divides GPUs")
def test_apply_assert_export(tmp_path: Path) -> None:
    host = MigHost(tmp_path, gpus=2, unable=1)
    file = tmp_path / "mig.yaml"
    file.write_text(CONFIG)
    chosen = ("-f", str(file), "-c", "balanced")
    said = gpurun(host, "assert", *chosen)
    assert said.returncode == 1 and 'not divided as the configuration "balanced" says: GPU 0' in said.stderr
    assert host.log() == []
    assert gpurun(host, "apply", *chosen).stdout == "divided anew: GPU 0\n"
    assert host.devices() == {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2} and host.log()
    variables = {"MIG_PARTED_CONFIG_FILE": str(file), "MIG_PARTED_SELECTED_CONFIG": "balanced"}
    assert gpurun(host, "apply", **variables).stdout == "the GPUs were already divided like this\n"
    assert gpurun(host, "assert", *chosen).returncode == 0
    assert not (host.driver.path / "var/lib/gpurun/mig/change.json").exists()
    out = gpurun(host, "export").stdout
    assert out == (
        "version: v1\nmig-configs:\n  current:\n"
        '  - device-filter: "0x20B010DE"\n    devices: all\n    mig-enabled: true\n    mig-devices:\n'
        '      "1g.5gb": 2\n      "2g.10gb": 1\n      "3g.20gb": 1\n'
        '  - device-filter: "0x1EB810DE"\n    devices: all\n    mig-enabled: false\n    mig-devices: {}\n'
    )
    assert gpurun(host, "assert", "-f", "-", stdin=out).returncode == 0
    assert json.loads(gpurun(host, "export", "-o", "json", "-l", "x").stdout)["mig-configs"]["x"][1]["devices"] == "all"


def test_generate_config(tmp_path: Path) -> None:
    """What it writes is taken as it is, and each configuration of it can be planned."""
    host = MigHost(tmp_path, gpus=2, unable=1)
    written = gpurun(host, "generate-config").stdout
    configs = read_configs(written.encode(), "f")
    assert {"all-disabled", "all-enabled", "all-1g.5gb", "all-1g.5gb.me", "all-balanced"} <= set(configs)
    for entries in configs.values():
        plan_config(host.gpus(), entries)
    assert json.loads(gpurun(host, "generate-config", "-o", "json").stdout)["mig-configs"]["all-1g.5gb"] == [
        {"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}
    ]
    assert 'unknown --output-format "xml"' in gpurun(host, "generate-config", "-o", "xml").stderr
    host.control("silent")
    done = gpurun(host, "generate-config")
    assert list(read_configs(done.stdout.encode(), "f")) == ["all-disabled", "all-enabled"]
    assert "does not tell what GPU 0 can be divided into while MIG is off: apply all-enabled first" in done.stderr
    assert host.log() == []


def test_words_that_are_wrong(tmp_path: Path) -> None:
    host = MigHost(tmp_path, gpus=1)
    file = tmp_path / "mig.yaml"
    file.write_text(CONFIG)
    for words, text in (
        ((), "say what to do: apply, assert, export or generate-config"),
        (("checkpoint",), "say what to do: apply, assert, export or generate-config"),
        (("generate-config", "-f", "x"), "gpu mig generate-config: takes no option --config-file"),
        (("apply",), "needs the configuration file (-f)"),
        (("apply", "-f", str(file)), "has several configurations, say which (-c): off, balanced"),
        (("assert", "-f", str(file), "-c", "none"), 'has no configuration "none", it has: off, balanced'),
        (("assert", "-f", str(file), "-s"), "gpu mig assert: takes no option --skip-reset"),
        (("export", "-o", "xml"), 'unknown --output-format "xml"'),
        (("apply", "--json"), "gpu mig: takes no option --json"),
    ):
        done = gpurun(host, *words)
        assert done.returncode and text in done.stderr and "Traceback" not in done.stderr, done
    assert (
        gpurun(host, "assert", "-a", "-f", str(file), "-c", "off").stdout == "the file is right and has the configuration\n"
    )
    assert host.log() == []


ONE, TWO = Instance(2, 0, 4, (3,), 1), Instance(0, 4, 1, (1,), 2)


@pytest.mark.parametrize(
    ("gpus", "listed"),
    [
        ((GPU,), [("all", True, None)]),
        ((replace(GPU, mode=False),), [("all", False, None)]),
        ((replace(GPU, instances=(ONE,)), replace(GPU, index=1)), [([0], True, None), ([1], True, None)]),
        ((replace(GPU, instances=(ONE, TWO)), replace(GPU, index=1, instances=(TWO, ONE))), [("all", True, None)]),
        ((replace(GPU, mode=False), T4), [("all", False, None)]),
        ((GPU, T4), [("all", True, "0x20B010DE"), ("all", False, "0x1EB810DE")]),
        (
            (replace(GPU, mode=False), T4, replace(GPU, index=2)),
            [([0, 1], False, ["0x1EB810DE", "0x20B010DE"]), ([2], True, "0x20B010DE")],
        ),
    ],
)
def test_exported(gpus: tuple[MigGpu, ...], listed: list[tuple[object, bool, object]]) -> None:
    document = export_config(gpus, "it")
    found = document["mig-configs"]["it"]
    assert [(one["devices"], one["mig-enabled"], one.get("device-filter")) for one in found] == listed
    for label in ("it", "null", "a: b", "1", "x\n- y"):
        read = read_configs(as_yaml(export_config(gpus, label)).encode(), "f")
        assert list(read) == [label] and len(read[label]) == len(listed)
