"""``gpurun cdi`` on hosts of other makers than NVIDIA: which command is the right one there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.__main__ import main
from tests.simcards import Host, amd, intel

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def mi210(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = amd.mi210(tmp_path / "host", count=1)
    monkeypatch.setenv("GPURUN_SYSROOT", str(host.path))
    return host


def call(capfd: Capture, *words: str) -> tuple[int, str, str]:
    code = main(["gpurun", "cdi", *words])
    return code, *capfd.readouterr()


def test_where_there_are_no_files_the_command_of_the_maker_is_named(mi210: Host, capfd: Capture) -> None:
    advice = f"`gpurun cdi generate --mode amd --output={mi210.path}/etc/cdi/amd.yaml` describes AMD's GPUs"
    for words in (("list",), ("validate",)):
        code, out, err = call(capfd, *words)
        assert (code, out) == (0, "") and advice in err and "nvidia" not in err


def test_hosts_without_gpus_are_told_to_write_none(tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPURUN_SYSROOT", str(intel.gaudi(tmp_path / "gaudi").path))
    assert call(capfd, "list")[2].endswith("(ask with HABANA_VISIBLE_DEVICES)\n")
    monkeypatch.setenv("GPURUN_SYSROOT", str(Host(tmp_path / "none").path))
    assert call(capfd, "list")[2].endswith("; this host has no GPU that a CDI file could describe\n")


@pytest.mark.parametrize("mode", [(), ("--mode", "nvml"), ("--mode", "intel")])
def test_generate_names_the_mode_that_would_write_something(mi210: Host, capfd: Capture, mode: tuple[str, ...]) -> None:
    code, out, err = call(capfd, "generate", *mode)
    assert (code, out) == (1, "") and "; AMD's GPUs are written by --mode amd" in err


def test_refresh_of_one_file_names_it_too_and_writes_no_other_makers_gpus(mi210: Host, capfd: Capture) -> None:
    file = mi210.path / "x.yaml"
    code, _, err = call(capfd, "refresh", "--output", str(file))
    assert code == 0 and "AMD's GPUs are written by --mode amd): nothing is written" in err and not file.exists()
