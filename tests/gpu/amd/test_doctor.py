"""``gpurun gpu doctor`` on an AMD host: what is missing, and the command that mends it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpurun.gpu.amd.doctor import examine
from gpurun.gpu.doctor import examine as examine_host
from gpurun.gpu.host.finding import Finding
from tests.needs_nodes import require_nodes
from tests.simcards import Host, amd
from tests.simdriver import Options, make

_NAMES = ("amdgpu", "/dev/kfd", "AMD's GPUs", "AMD's device nodes", "groups of AMD's nodes")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = amd.mi210(tmp_path / "host", count=2)
    require_nodes(made.real_nodes)
    return made


def _said(host: Host) -> dict[str, Finding]:
    return {one.subject: one for one in examine(str(host.path)) if one.verdict != "ok"}


def test_a_healthy_host(host: Host) -> None:
    found = examine(str(host.path))
    assert [(one.subject, one.verdict) for one in found[:-1]] == [(name, "ok") for name in _NAMES]
    assert (found[-1].subject, found[-1].verdict) == ("limits of GPU memory", "note") and "Linux 6.14" in found[-1].text
    texts = [one.text for one in found]
    assert texts[0] == "version 6.12.12" and texts[1].startswith("mode 0660, group ")
    assert "2: 0 = AMD Instinct MI210 (0000:43:00.0), 1 = AMD Instinct MI210 (0000:63:00.0)" in texts[2]


def _hidden(dev: Path) -> None:
    (dev.parent / amd.KFD / "nodes/2/properties").write_text("")


@pytest.mark.parametrize(
    ("spoil", "subject", "verdict", "words"),
    [
        (lambda dev: (dev / "kfd").unlink(), "/dev/kfd", "fail", "`udevadm trigger"),
        (lambda dev: (dev / "dri/renderD128").unlink(), "AMD's device nodes", "fail", "`udevadm trigger"),
        (lambda dev: (dev / "kfd").chmod(0o600), "groups of AMD's nodes", "note", 'GROUP="render"'),
        (
            lambda dev: os.chown(dev / "dri/renderD129", 0, 0),
            "groups of AMD's nodes",
            "note",
            "renderD129, so in a container only root can",
        ),
        (_hidden, "AMD's GPUs", "note", "0000:63:00.0 has display nodes and none of KFD"),
    ],
)
def test_what_is_broken(host: Host, spoil: Callable[[Path], None], subject: str, verdict: str, words: str) -> None:
    spoil(host.path / "dev")
    found = _said(host)[subject]
    assert found.verdict == verdict and words in found.text


def test_a_kernel_without_kfd(host: Host) -> None:
    (host.path / "sys/class/kfd/kfd").unlink()
    said = _said(host)
    assert {name: one.verdict for name, one in said.items()}["/dev/kfd"] == "fail"
    assert "CONFIG_HSA_AMD" in said["/dev/kfd"].text


def test_a_node_that_this_user_cannot_open(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posix.access", lambda path, *_, **how: not path.endswith("renderD129"))
    found = _said(host)["AMD's device nodes"]
    assert found.verdict == "fail" and "costs ROCm all GPUs" in found.text
    assert "renderD129: the group " in found.text and "renderD128" not in found.text and "`usermod -aG " in found.text


@pytest.mark.parametrize(("nvidia", "subjects"), [(False, set()), (True, {"kernel module", "libraries", "GPUs"})])
def test_each_makers_findings_where_it_has_something(tmp_path: Path, nvidia: bool, subjects: set[str]) -> None:
    if nvidia:
        make(tmp_path, Options(nodes=False))
    host = amd.beside_nvidia(tmp_path) if nvidia else amd.mi210(tmp_path)
    found = {one.subject for one in examine_host(host.env)}
    assert {"amdgpu", "/dev/kfd"} <= found
    assert found & {"kernel module", "libraries", "GPUs"} == subjects
