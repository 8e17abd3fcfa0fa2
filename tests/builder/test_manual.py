"""Manual pages and completions, as packages bring them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpurun.builder.completions import FILES
from gpurun.builder.manual import pages
from gpurun.cli.human import completion_script
from gpurun.cli.rows import command
from gpurun.cli.table import COMMANDS

PAGES = pages("2026-11-22")


def test_a_page_for_each_command_with_each_option() -> None:
    assert set(PAGES) == {"gpurun.1", *[f"gpurun-{name}.1" for name in COMMANDS]}
    for name in COMMANDS:
        assert f"gpurun\\-{name.replace('-', chr(92) + '-')} (1)" in PAGES["gpurun.1"]
        text = PAGES[f"gpurun-{name}.1"].replace("\\-", "-")
        for option in command(name).options:
            assert (f"\\fB--{option.name}\\fR" in text) == option.visible, (name, option.name)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_groff_has_no_complaint(name: str, tmp_path: Path) -> None:
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z"], input=PAGES[name].encode("ascii"), capture_output=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_is_typed_can_be_copied() -> None:
    """No hyphen that is not a minus, no command of roff where a text begins with a dot."""
    shown = PAGES["gpurun-gpu.1"]
    assert "NVIDIA_VISIBLE_DEVICES=0" in shown and "\\-\\-processes" in shown
    for text in PAGES.values():
        assert not [
            line for line in text.splitlines() if line.startswith(("'", ".")) and line.split()[0].strip(".") not in MACROS
        ]


MACROS = {"TH", "nh", "ad", "SH", "SS", "B", "BR", "PP", "TP", "EX", "EE"}


@pytest.mark.parametrize("shell", FILES)
def test_the_shell_reads_its_completion(shell: str, tmp_path: Path) -> None:
    file = tmp_path / FILES[shell]
    file.write_text(completion_script(shell))
    assert "_GPURUN_COMPLETE" in file.read_text()
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", file], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
