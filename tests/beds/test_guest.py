"""The emulated guest's programs, with stand-ins for what they start: two builds at once, and an end in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.native.waiting import wait_until

BEDS = Path(__file__).resolve().parent
# Says that it has begun, and ends when it is let: as if another call had made the image meanwhile.
MMDEBSTRAP = """#!/bin/bash
for root; do [[ $root != */root ]] || break; done
echo "$root" >>"$DIRECTORY/began"
read <"$DIRECTORY/go"
[[ -d ${root%/root} ]] && mkdir "${root%.tmp/root}" && touch "${root%.tmp/root}/done"
exit 1
"""
QEMU = """#!/bin/bash
echo $$ $TMPDIR >>"$DIRECTORY/emulated"
exec sleep 1000
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    for name, text in (("mmdebstrap", MMDEBSTRAP), ("qemu", QEMU)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    os.mkfifo(tmp_path / "go")
    path = f"{tmp_path}:{os.environ['PATH']}"
    kept, emulator = str(tmp_path / "kept"), str(tmp_path / "qemu")
    return os.environ | {"PATH": path, "DIRECTORY": str(tmp_path), "GPURUN_VM": kept, "GPURUN_QEMU": emulator}


def build(env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen([BEDS / "vm-build"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def waits_for_a_lock(process: subprocess.Popen[str]) -> bool:
    """Whether flock(1), which it has started, is blocked."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return any(f" {child} " in line for line in lines(Path("/proc/locks")) if "->" in line for child in children)


def test_two_builds_at_once(env: dict[str, str], tmp_path: Path) -> None:
    """The second leaves the first one's tree alone, and takes the image that is there then."""
    first = build(env)
    wait_until(lambda: lines(tmp_path / "began"))
    second = build(env)
    wait_until(lambda: waits_for_a_lock(second) or len(lines(tmp_path / "began")) > 1)
    (tmp_path / "go").write_text("\n")
    first.communicate(timeout=60)
    said = second.communicate(timeout=60)
    (root,) = lines(tmp_path / "began")
    assert (second.returncode, *said) == (0, root.removesuffix(".tmp/root") + "\n", "")


def test_the_emulator_ends_with_vm_run(env: dict[str, str], tmp_path: Path) -> None:
    built = build(env)
    (tmp_path / "go").write_text("\n")
    built.communicate(timeout=60)
    run = subprocess.Popen([BEDS / "vm-run", "--", "true"], env=env, stderr=subprocess.PIPE)
    wait_until(lambda: lines(tmp_path / "emulated"), meanwhile=lambda: None if run.poll() is None else "it has ended")
    ((pid, directory),) = map(str.split, lines(tmp_path / "emulated"))
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM
    assert not Path(f"/proc/{pid}").exists() and not Path(directory).exists()
