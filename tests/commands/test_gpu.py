"""``gpurun gpu list`` and ``gpurun gpu doctor`` on simulated hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpurun.__main__ import main
from gpurun.hook.doctor import examine
from tests.simdriver import Options, bus_id, make, uuid


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("XDG_CONFIG_HOME", "NVIDIA_CTK_CONFIG_FILE_PATH", "GPURUN_SYSROOT"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def call(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["gpurun", "gpu", *args])
    out, err = capfd.readouterr()
    return code, out, err


def verdicts(path: Path) -> dict[str, str]:
    return {f.subject: f.verdict for f in examine({"GPURUN_SYSROOT": str(path)}) if f.subject != "cgroup"}


def test_list(tmp_path: Path, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch) -> None:
    clean.setenv("GPURUN_SYSROOT", str(make(tmp_path, Options(nodes=False)).path))
    code, out, _ = call(capfd, "list")
    assert code == 0 and [line.split()[:3] for line in out.splitlines()[1:]] == [
        [str(i), uuid(i), bus_id(i)] for i in (0, 1)
    ]
    code, out, _ = call(capfd, "list", "--format", "json")
    document = json.loads(out)
    assert document["driverVersion"] == "999.88.77" and document["gpus"][1]["uuid"] == uuid(1)


def test_list_without_a_driver(tmp_path: Path, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch) -> None:
    clean.setenv("GPURUN_SYSROOT", str(tmp_path))
    assert call(capfd, "list", "-f", "json")[:2] == (0, '{\n  "driverVersion": "",\n  "gpus": []\n}\n')


@pytest.mark.parametrize("args", [("other",), ("list", "--format", "xml"), ()])
def test_wrong_usage(args: tuple[str, ...], capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch) -> None:
    code, _, err = call(capfd, *args)
    assert code != 0 and err


def test_a_healthy_host(tmp_path: Path, capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch) -> None:
    clean.setenv("GPURUN_SYSROOT", str(make(tmp_path, Options(nodes=False)).path))
    _, out, _ = call(capfd, "doctor")
    assert "ok    kernel module: version 999.88.77\n" in out and "ok    GPUs: 2: 0 = NVIDIA A100-SXM4-40GB" in out
    assert verdicts(tmp_path) == {
        "configuration": "ok", "kernel module": "ok", "libraries": "ok", "GPUs": "ok", "CUDA": "ok", "device nodes": "note",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "failing"),
    [
        (Options(no_module=True), {"kernel module", "libraries"}),
        (Options(no_userspace=True), {"libraries"}),
        (Options(version_mismatch=True), {"libraries"}),
        (Options(no_uvm=True), {"CUDA"}),
        (Options(gpus=0), {"GPUs"}),
    ],
)
def test_what_is_broken(
    tmp_path: Path, options: Options, failing: set[str], capfd: pytest.CaptureFixture[str], clean: pytest.MonkeyPatch
) -> None:
    clean.setenv("GPURUN_SYSROOT", str(make(tmp_path, options).path))
    assert {subject for subject, verdict in verdicts(tmp_path).items() if verdict == "fail"} == failing
    code, out, _ = call(capfd, "doctor", "--format", "json")
    assert code == 1 and {f["subject"] for f in json.loads(out) if f["verdict"] == "fail"} >= failing


def test_site_policy_is_told(tmp_path: Path) -> None:
    file = make(tmp_path, Options()).path / "etc/nvidia-container-runtime/config.toml"
    file.parent.mkdir()
    file.write_text("accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
    assert verdicts(tmp_path)["configuration"] == "note"
    file.write_text("broken")
    assert verdicts(tmp_path)["configuration"] == "fail"
