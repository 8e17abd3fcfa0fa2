"""create tells the waiting starter that devices are to come as soon as it has read the config, and only then."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from gpurun.engine import sync
from gpurun.engine.child import Started
from gpurun.engine.create import CreateOptions, plan_bundle
from gpurun.oci.default_spec import default_spec


def told(tmp_path: Path, env: list[str]) -> tuple[object, ...] | None:
    spec = default_spec()
    spec["process"]["env"] += env
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(spec))
    ours, its = socket.socketpair()
    with ours, its:
        plan_bundle(CreateOptions("c", str(tmp_path / "root"), str(tmp_path)), started=Started(0, ours.fileno()))
        ours.shutdown(socket.SHUT_WR)
        return sync.receive(its.fileno())


@pytest.mark.parametrize(("env", "message"), [([], None), (["NVIDIA_VISIBLE_DEVICES=void"], ("devices",))])
def test_the_starter_is_told(tmp_path: Path, env: list[str], message: tuple[str] | None) -> None:
    assert told(tmp_path, env) == message


def test_a_starter_that_has_ended_is_another_step_s_error(tmp_path: Path) -> None:
    from gpurun.engine.child import expect_devices

    ours, its = socket.socketpair()
    its.close()
    with ours:
        expect_devices(Started(0, ours.fileno()))
