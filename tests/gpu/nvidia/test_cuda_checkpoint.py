"""What a host lacks for saving programs that compute.  The two programs are stand-ins: empty files of the right names."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.gpu.nvidia.cuda_checkpoint import missing, obstacle, plugin_directories


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with both programs: its path is that of CRIU's settings."""
    (tmp_path / "cuda-checkpoint").touch(0o755)
    (tmp_path / "cuda_plugin.so").touch()
    monkeypatch.setattr("posix.environ", {b"PATH": str(tmp_path).encode()})
    settings = tmp_path / "criu.conf"
    settings.write_text(f"# of this site\nlibdir {tmp_path}  # here\n")
    return settings


def test_all_is_there(host: Path) -> None:
    assert missing("570.86.15", str(host)) == () and obstacle("570.86.15", str(host)) == ""
    assert plugin_directories(str(host)) == (str(host.parent),)


@pytest.mark.parametrize(
    ("driver", "gone", "said"),
    [
        ("550.54.14", "", "a driver from 570 on (this one is 550.54.14)"),
        ("", "", "whose version cannot be read"),
        ("570.86.15", "cuda-checkpoint", "NVIDIA's cuda-checkpoint in $PATH"),
        ("570.86.15", "cuda_plugin.so", "CRIU's cuda_plugin.so in "),
    ],
)
def test_each_is_named(host: Path, driver: str, gone: str, said: str) -> None:
    if gone:
        (host.parent / gone).unlink()
    lacks = missing(driver, str(host))
    assert len(lacks) == 1 and said in lacks[0]
    assert obstacle(driver, str(host)).endswith(f"this host lacks {lacks[0]}")
