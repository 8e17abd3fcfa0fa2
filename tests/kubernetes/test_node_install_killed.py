"""An installer killed at every step of its work: the next one goes on, or takes all back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.kubernetes.install import steps
from tests.forms import stride
from tests.kubernetes.host_trees import contents, now, read_by_engine
from tests.kubernetes.node_install import (
    NODES,
    SETUP,
    install,
    killed_at,
    needs_chroot,
    prepare,
    remove,
    source,
)

pytestmark = needs_chroot


def clear(root: Path, start: dict[str, str]) -> None:
    remove(root)
    assert contents(root) == start
    (root / "var/log/systemctl").unlink(missing_ok=True)


def test_what_a_killed_installer_left_goes_and_the_files_of_others_stay(root: Path) -> None:
    prepare(root, NODES["version 2"])
    programs = root / SETUP.program.lstrip("/")
    record, config = root / "var/lib/gpurun/node-install.json", root / "etc/containerd/config.toml"
    for file in (programs, record, config):
        file.parent.mkdir(parents=True, exist_ok=True)
    strays = [file.parent / f".{file.name}.gpurun.4711" for file in (programs, record, config)]
    others = [
        file.parent / f".{file.name}.{end}" for file in (programs, record, config) for end in ("1", "20261123", "1.tmp")
    ]
    for file in (*strays, *others):
        file.write_text("")
    install(root)
    assert [file for file in strays if file.exists()] == []
    assert [file for file in others if not file.exists()] == []


@pytest.mark.parametrize("after", ["install", "remove"])
def test_killed_at_any_step_of_installing(root: Path, after: str) -> None:
    """Whoever comes next goes on, or takes it all back; and the engine has read what is there."""
    start = prepare(root, NODES["version 2"])
    install(root)
    wanted = contents(root)
    clear(root, start)
    step = 0
    while True:
        step += stride()
        fd = source(root)
        was_killed = killed_at(step, root, lambda fd=fd: steps.install(SETUP, fd))  # type: ignore[misc]
        os.close(fd)
        if after == "install":
            install(root)
            assert contents(root) == wanted, step
            assert read_by_engine(root) == now(root), step
        remove(root)
        assert contents(root) == start, step
        assert read_by_engine(root) in ({}, now(root)), step
        if not was_killed:
            break
    assert step > 30


def test_killed_at_any_step_of_removing(root: Path) -> None:
    start = prepare(root, NODES["version 2"])
    step = 0
    while True:
        step += stride()
        install(root)
        was_killed = killed_at(step, root, steps.remove)
        remove(root)
        assert contents(root) == start, step
        assert read_by_engine(root) == now(root), step
        if not was_killed:
            break
    assert step > 20
