"""The life of a container while SELinux enforces Debian's policy, beside runc and crun, called by an administrator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import MakeBundle
from tests.native.bundle import Bundle
from tests.native.kernel_log import kernel_log, mark_kernel_log
from tests.native.leaks import Leaks
from tests.native.runtime import ENVIRONMENT, Runtime
from tests.native.selinux import (
    FILES,
    enforcing,
    flush_decisions,
    labelled,
    needs_selinux,
    refusals,
    set_label,
)
from tests.native.waiting import wait_until
from tests.simdriver import SimulatedDriver, bus_id, uuid

pytestmark = [*needs_selinux, pytest.mark.usefixtures("all_logged")]

#: What it says goes to a file of the container's: of the engine's files a confined process has none.
PLAIN = """
exec >/data/said 2>&1
cat /proc/self/attr/current; echo
touch /tmp/file /dev/shm/file /root/file && echo made
cat /proc/self/status /etc/passwd /sys/kernel/mm/transparent_hugepage/enabled >/dev/null && echo read
echo x >/dev/null; head -c 1 /dev/zero >/dev/null; ls /dev /dev/pts /proc/sys/kernel >/dev/null && echo listed
ls /sys/firmware; head -c 1 /proc/kcore; echo up
exec sleep 1000
"""
GPU = """
exec >/data/said 2>&1
cat /proc/driver/nvidia/params | head -n 1; ls /proc/driver/nvidia/gpus
head -c 20 /etc/ld.so.cache; echo; ls -d /dev/nvidia*
(: <>/dev/nvidia0)
nvidia-smi -L; echo up
exec sleep 1000
"""


class Life(NamedTuple):
    """What each command returned and said, what the container said, and what was refused to whom."""

    commands: dict[str, tuple[int, str]]
    said: str
    refused: set[tuple[str, str, str, str]]


def relabel(top: Path, context: str) -> None:
    set_label(top, context)
    for root, directories, files in os.walk(top):
        for name in (*directories, *files):
            set_label(os.path.join(root, name), context)


def live(runtime: Runtime, b: Bundle, env: dict[str, str]) -> Life:
    """create, start, exec, kill, state and delete."""
    container_id, files = runtime.new_id(), runtime.new_files()
    runtime.prepare(b, container_id)
    commands = {
        "create": ("create", "--bundle", str(b.directory), "--pid-file", str(files / "pid"), container_id),
        "start": ("start", container_id),
        "exec": ("exec", container_id, "sh", "-c", "exec >/data/exec 2>&1; cat /proc/self/attr/current; echo x >/tmp/other"),
        "kill": ("kill", container_id, "KILL"),
        "state": ("state", container_id),
        "delete": ("delete", container_id),
    }
    for name in commands:
        (files / name).mkdir()
    for top in (b.rootfs, b.directory / "data"):
        relabel(top, FILES)
    said = b.directory / "data/said"
    results: dict[str, tuple[int, str]] = {}
    flush_decisions()
    since = mark_kernel_log()
    with enforcing():
        for name, words in commands.items():
            code, _, text = runtime(*words, files=files / name, env=env)
            results[name] = (code, text)
            if name == "start" and code == 0:
                wait_until(lambda: said.exists() and "up" in said.read_text().splitlines())
            if name == "kill" and code == 0:
                os.waitpid(int((files / "pid").read_text()), 0)
    other = b.directory / "data/exec"
    shown = "".join(path.read_text() for path in (said, other) if path.exists())
    return Life(results, shown.replace("\0", ""), refusals(kernel_log(since)))


@pytest.mark.short
def test_a_plain_container(runtime: Runtime, peer: Runtime, bundle: MakeBundle, leaks: Leaks) -> None:
    leaks.allow_rootfs_changes()
    ours, its = [live(each, labelled(bundle()).sh(PLAIN), dict(ENVIRONMENT)) for each in (runtime, peer)]
    assert {name: rc for name, (rc, _) in ours.commands.items()} == dict.fromkeys(ours.commands, 0), ours
    assert ours.said == its.said and "container_t" in ours.said
    assert sorted(ours.refused - its.refused) == []


@pytest.mark.short
@pytest.mark.gpurun_only
def test_a_gpu_container(runtime: Runtime, bundle: MakeBundle, host: SimulatedDriver, leaks: Leaks) -> None:
    """The driver's files are the host's: they have the labels that a policy gives them where one is installed."""
    leaks.allow_rootfs_changes()
    relabel(host.path, "system_u:object_r:lib_t:s0")
    for program in host.path.rglob("nvidia-smi"):
        set_label(program, "system_u:object_r:bin_t:s0")
    b = labelled(bundle()).sh(GPU)
    b.process["env"].append("NVIDIA_VISIBLE_DEVICES=all")
    life = live(runtime, b, ENVIRONMENT | host.env)
    assert {name: rc for name, (rc, _) in life.commands.items()} == dict.fromkeys(life.commands, 0), life
    assert "up" in life.said.splitlines() and "ermission denied" not in life.said
    for word in ("ResmanDebugLevel: ", bus_id(0), "glibc-ld.so.cache", "/dev/nvidia0", uuid(0)):
        assert word in life.said, life
    # Of the container nothing but its output, which is an engine's file, and the module of nodes that no driver serves.
    assert {permission for permission, who, *_ in life.refused if who == "container_t"} <= {"append", "module_request"}
