"""The commands of README and docs: every command line of gpurun is a good one, and those that can be are run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpurun.cli.parse import parse
from tests.conftest import runtime_path
from tests.images.making import USERS, docker_save, layer
from tests.native.bundle import base_config
from tests.native.runtime import ENVIRONMENT
from tests.simdriver import SimulatedDriver
from tests.test_documents import PAGES

#: Pages that other programs write.
GENERATED = ("attacks.md", "clients.md", "conformance.md", "spec-coverage.md")


def lines_of(page: Path) -> list[str]:
    """The command lines of gpurun in the blocks of a page (indented, or between fences), without comments and prompt."""
    found, fence = [], ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fence = "" if fence else line
            continue
        if not line.startswith("    ") and fence in ("", "```mermaid", "```python"):
            continue
        command = re.sub(r"\s+#.*", "", line.strip().removeprefix("$ "))
        for part in re.split(r" && | \| ", command):
            if part.startswith("gpurun ") and " = " not in part and "-->" not in part:
                found.append(part)
    return found


LINES = [(page.name, line) for page in PAGES if page.name not in GENERATED for line in lines_of(page)]


def test_there_are_lines() -> None:
    assert len(LINES) > 35 and len({line for _, line in LINES}) > 30


@pytest.mark.parametrize(("page", "line"), LINES, ids=lambda text: text.replace(" ", "_")[:60])
def test_every_line_is_a_good_one(page: str, line: str) -> None:
    parse(shlex.split(re.sub(r"\[(\w+) \.\.\.\]", r"\1", line))[1:])


#: What begins a line that changes nothing, or only where it is told to; the others are for engines, clusters and containers,
#: and run in the suites of these (tests/clients, tests/kubernetes, tests/gpu).
RUN = (
    "gpu list", "gpu doctor", "gpu explain", "gpu leases", "cdi generate", "cdi list", "cdi validate",
    "explain", "validate", "help", "list", "stats", "bundle", "spec", "run",
)  # fmt: skip
NOT_RUN = (
    "install", "uninstall", "gpu attach", "gpu detach", "gpu lease ", "gpu mig", "update", "kubernetes", "metrics",
    "cdi refresh", "run --bundle b", "create", "start", "exec", "kill", "delete", "state", "checkpoint", "restore",
)  # fmt: skip


def words_of(line: str) -> list[str]:
    return shlex.split(line)[1:]


def begins(line: str, known: tuple[str, ...]) -> bool:
    return any(line.removeprefix("gpurun ").startswith(one) for one in known)


def test_every_line_is_run_or_known_not_to_be() -> None:
    left = [line for _, line in LINES if not begins(line, RUN) and not begins(line, NOT_RUN)]
    assert not left


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    """What stands in the place of the names in the lines."""
    bundle = tmp_path / "bundle"
    (bundle / "rootfs/bin").mkdir(parents=True)
    (bundle / "rootfs/bin/true").write_text("#!/bin/false")
    (bundle / "rootfs/bin/true").chmod(0o755)
    (bundle / "config.json").write_text(json.dumps(base_config()))
    source = docker_save(tmp_path / "image.tar", layer(*USERS, ("bin/sh", "file", ""), ("srv", "dir", None)))
    return {
        "BUNDLE": str(bundle), "OTHER": str(bundle), "SOURCE": str(source), "DIR": str(tmp_path / "made"),
        "/srv/bundle": str(tmp_path / "made"), "/etc/cdi/nvidia.yaml": str(tmp_path / "nvidia.yaml"),
        "b": str(tmp_path / "b"), "[FILE": "", "...]": "",
    }  # fmt: skip


SAFE = sorted({line for _, line in LINES if begins(line, RUN) and not begins(line, NOT_RUN)})


@pytest.mark.parametrize("line", SAFE)
def test_it_is_run(line: str, place: dict[str, Any], sim: SimulatedDriver, tmp_path: Path) -> None:
    if line.startswith(("gpurun run ", "gpurun explain --running", "gpurun stats --once web")):
        pytest.skip("needs a container: tests/library/test_timeline.py, test_running below, tests/commands/test_stats.py")
    words = [place.get(word, word) for word in words_of(line)]
    words = [word for word in words if word]
    if words[0] == "stats":
        words += [] if "--once" in words else ["--once"]
    if words[0] == "spec":
        (tmp_path / "b").mkdir()
    done = subprocess.run(
        [runtime_path(), *words], capture_output=True, text=True, timeout=120, cwd=tmp_path, stdin=subprocess.DEVNULL,
        env={**ENVIRONMENT, **sim.env, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    # The doctor finds something to say of a simulated driver; there are no free GPUs of the model that an example names.
    expected = (0, 1) if begins(line, ("gpu doctor", "gpu explain", "cdi validate")) else (0,)
    assert done.returncode in expected, done.stdout + done.stderr
    assert "internal error" not in done.stderr and "Traceback" not in done.stderr
    assert os.path.exists(place["DIR"]) or "bundle -" not in line
    shutil.rmtree(tmp_path / "made", ignore_errors=True)
