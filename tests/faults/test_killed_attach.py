"""gpu attach and gpu detach that are killed at a system call: the next command of the container completes or undoes them.

After it node, device program, environment, lease and record say the same.  ``make test`` takes a few calls of each,
``make test-faults`` (GPURUN_FAULTS) more or all.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.conftest import MakeBundle
from tests.faults.sweep import Call, calls_made, chosen
from tests.gpu.leases.box import NO_DRIVER, Box, MakeBox
from tests.gpu.leases.conftest import box, host, make_host  # noqa: F401
from tests.native.inject import Injection
from tests.native.runtime import Runtime
from tests.simdriver import uuid

pytestmark = [pytest.mark.native, pytest.mark.gpurun_only]

SHORT = 6
#: The calls by which a change is made; between two of them all others leave the same behind.
STEPS = frozenset(
    "rename renameat bpf mknod mknodat move_mount umount2 unlink unlinkat symlinkat setns".split()  # noqa: SIM905
)


def leased(one: Box) -> list[list[int]]:
    """The indices of the GPUs of each lease."""
    listed = json.loads(one.runtime("gpu", "leases", "--json", env=one.env).out)["leases"]
    return [[gpu["index"] for gpu in lease["gpus"]] for lease in listed]


def steps_of(one: Box, log: Path, *words: str) -> list[Call]:
    """The calls of the command *words* that change something; it is run once."""
    tracer = ["strace", "-f", "-qq", "-D", "-I", "2", "-o", str(log), "-e", "signal=none"]
    traced = one.runtime(*words, env=one.env, tracer=tracer)
    assert traced.rc == 0, traced
    calls = calls_made(log, Path(one.runtime.path))
    assert len(calls) > 30
    return [call for call in calls if call.name in STEPS]


def kill_at(one: Box, call: Call, log: Path, *words: str) -> bool:
    """Run the command *words* and kill it at *call*; whether it was killed."""
    with Injection(log, call.name, "", str(call.number), children=call.child, signal="KILL") as tracer:
        log.write_text("")
        return one.runtime(*words, env=one.env, tracer=tracer).rc != 0


def agrees(one: Box) -> bool:
    """Whether the container has GPU 0, which node, device program, environment, lease and record must say alike."""
    directory = one.runtime.root / one.id
    assert not (directory / "gpu-change").exists()
    has = one.opens(0) == NO_DRIVER
    seen = one.sees()
    assert len(seen["nodes"]) == len(seen["gpus"]) == (1 if has else 0), seen
    assert seen["names"] == ([uuid(0)] if has else ["none"]), seen
    assert (uuid(0) in seen["smi"]) is has, seen
    assert leased(one) == ([[0]] if has else [])
    record = directory / "attached"
    gpus = json.loads(record.read_text())["gpus"] if record.exists() else []
    assert [gpu["name"] for gpu in gpus] == ([uuid(0)] if has else [])
    return has


@pytest.mark.parametrize("what", ["attach", "detach"])
def test_killed_at_each_step(
    box: MakeBox,  # noqa: F811
    runtime: Runtime,
    bundle: MakeBundle,
    tmp_path: Path,
    what: str,
) -> None:
    one = box(script="exec sleep 86400")  # all calls take longer than ten minutes
    site = tmp_path / "site.toml"
    site.write_text('[leases]\nnever = ["1", "2", "3"]\n')
    one.env["GPURUN_CONFIG"] = str(site)
    log = tmp_path / "strace"
    words = ("gpu", what, one.id, "free" if what == "attach" else "0")
    one.attach("free")  # the first one brings the driver's files as well
    if what == "attach":
        one.detach("0")
    calls = steps_of(one, log, *words)
    has = what == "attach"
    killed = 0
    next_commands = itertools.cycle(["exec", "update", "update --gpus", "attach", "detach", "checkpoint"])
    for call in chosen(calls, SHORT):
        if has is (what == "attach"):
            one.gpu("detach" if has else "attach", "0" if has else "free")
        if not kill_at(one, call, log, *words):
            has = agrees(one)
            continue
        killed += 1
        command = next(next_commands)
        where = f"{what} killed at {call}, then {command}"
        if command == "exec":
            one.sh("true")
        elif command == "update":
            done = runtime("update", one.id, env=one.env)
            assert done.rc == 0, f"{where}: {done.text}"
        elif command == "update --gpus":
            done = runtime("update", "--gpus", "none", one.id, env=one.env)
            assert done.rc == 0, f"{where}: {done.text}"
        elif command == "checkpoint":  # finishes the change first, and then looks for CRIU
            done = runtime("checkpoint", "--image-path", str(tmp_path), one.id, env=one.env | {"PATH": "/nonexistent"})
            assert done.rc == 1 and "there is no criu" in done.text, f"{where}: {done.text}"
        else:
            done = one.gpu(command, "9")
            assert done.rc == 1 and {"attach": "9: unknown", "detach": "does not have 9"}[command] in done.text, (
                f"{where}: {done.text}"
            )
        try:
            has = agrees(one)
        except AssertionError as e:
            raise AssertionError(f"{where}: {e}") from e
        assert not (command == "update --gpus" and has), where
    assert killed >= SHORT // 2
    if has:
        one.detach("0")
    one.attach("0")
    one.has(0)
    one.detach("0")
    one.has()


def test_the_first_attach_killed_at_each_step(
    box: MakeBox,  # noqa: F811
    tmp_path: Path,
) -> None:
    """It brings the driver's files too: those of them that were made are taken back, and the next attach makes all."""
    log = tmp_path / "strace"
    whole = box(script="exec sleep 86400")
    calls = steps_of(whole, log, "gpu", "attach", whole.id, "0")
    files = whole.sh("ls -A /etc /usr/lib/*/nvidia/current; ls -l /usr/lib/*/*.so*").replace(str(whole.id), "")
    killed = 0
    for call in chosen(calls, SHORT):
        one = box(script="exec sleep 86400")
        rootfs = one.container.bundle.rootfs
        before = sorted(str(path.relative_to(rootfs)) for path in rootfs.rglob("*"))
        if not kill_at(one, call, log, "gpu", "attach", one.id, "0"):
            continue
        killed += 1
        one.sh("true")
        where = f"killed at {call}"
        assert one.sees()["nodes"] == [] and one.sees()["gpus"] == [], where
        assert sorted(str(path.relative_to(rootfs)) for path in rootfs.rglob("*")) == before, where
        one.attach("0")
        one.has(0)
        made = one.sh("ls -A /etc /usr/lib/*/nvidia/current; ls -l /usr/lib/*/*.so*").replace(str(one.id), "")
        assert made.splitlines()[:8] == files.splitlines()[:8], where
        assert one.container.delete("--force").rc == 0
    assert killed >= SHORT // 2
