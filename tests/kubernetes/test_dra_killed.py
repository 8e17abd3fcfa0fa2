"""The DRA driver killed at each step of preparing and unpreparing, and checkpoints that cannot be trusted."""

from __future__ import annotations

import json
import os
import posix
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from tests.forms import stride
from tests.kubernetes import killed
from tests.needs_nodes import needs_nodes

pytestmark = needs_nodes


def killed_at(step: int, directory: Path, prepare: bool) -> bool:
    """Prepare or unprepare in a child that ends before or after its n-th change of a file; whether it got so far."""
    pid = os.fork()
    if pid == 0:
        counted = killed.ends_at(step)
        for name in ("open", "rename", "fsync", "unlink"):
            once = counted(getattr(os, name))
            setattr(os, name, once)
            setattr(posix, name, once)
        try:
            made = killed.preparer(str(directory))
            if prepare:
                made.prepare(killed.claim())
            else:
                made.unprepare(killed.claim().uid)
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9)
    return code == 9


def test_killed_at_any_step_of_preparing(tmp_path: Path) -> None:
    """Whatever a driver that was killed has left: the next one prepares the same, and takes all of it back."""
    killed.make_host(tmp_path)
    wanted, step = "", 0
    while True:
        step += stride()
        killed.empty(tmp_path)
        was_killed = killed_at(step, tmp_path, prepare=True)
        again = killed.preparer(str(tmp_path))
        again.start_again()
        answer = again.prepare(killed.claim())
        content = killed.files(tmp_path)
        wanted = wanted or content
        assert content == wanted and answer.state == "completed", step
        again.unprepare(killed.claim().uid)
        assert not killed.files(tmp_path) and not killed.preparer(str(tmp_path)).claims, step
        if not was_killed:
            break
    assert 10 < step < 60


def test_killed_at_any_step_of_unpreparing(tmp_path: Path) -> None:
    killed.make_host(tmp_path)
    step = 0
    while True:
        step += stride()
        killed.empty(tmp_path)
        killed.preparer(str(tmp_path)).prepare(killed.claim())
        was_killed = killed_at(step, tmp_path, prepare=False)
        again = killed.preparer(str(tmp_path))
        again.start_again()
        again.unprepare(killed.claim().uid)
        assert not killed.files(tmp_path) and not again.claims, step
        if not was_killed:
            break
    assert 5 < step < 60


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:40], "cannot be read: the claims of this node's pods are in it"),
        (lambda text: text.replace('"completed"', '"started"'), "is damaged: "),
        (lambda text: text.replace('"version": 1', '"version": 3'), "version 3 is of a newer gpurun"),
        (lambda text: "[]", "cannot be read"),
    ],
)
def test_a_checkpoint_that_cannot_be_trusted(tmp_path: Path, change: Any, said: str) -> None:
    killed.make_host(tmp_path)
    killed.preparer(str(tmp_path)).prepare(killed.claim())
    path = tmp_path / "checkpoint.json"
    text = path.read_text()
    assert json.loads(text)["claims"]
    path.write_text(change(text))
    with pytest.raises(GpurunError, match=said):
        killed.preparer(str(tmp_path))
