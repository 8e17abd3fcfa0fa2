"""The table [leases] of the site's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.engine.site_config import read_leases, read_site
from gpurun.errors import ConfigError
from gpurun.gpu.leases.policy import LeasePolicy


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "config.toml").write_text(text)
    return str(tmp_path / "config.toml")


def test_all_of_it(tmp_path: Path) -> None:
    text = """
[placement]
memory.swap = "off"
[leases]
shared = "refuse"
never = ["0", "GPU-1"]
ignore = ["dcgm*"]
wait = "2m"
per-user = 4
longest = "8h"
at-end = "end"
warn = "5m"
grace = "30s"
per-label = ["com.docker.compose.project=2", "example.org/team=8"]
"""
    path = written(tmp_path, text)
    limits = (("com.docker.compose.project", 2), ("example.org/team", 8))
    assert read_leases(path) == LeasePolicy(
        "refuse", ("0", "GPU-1"), ("dcgm*",), 120.0, 4, limits, 28800.0, "end", 300.0, 30.0
    )
    site = read_site(path)
    assert site is not None and site.policies == (("memory.swap", "off"),)


def test_none_of_it(tmp_path: Path) -> None:
    assert read_leases(str(tmp_path / "none")) == LeasePolicy()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('shared = "perhaps"', "must be one of share, warn, refuse"),
        ("never = 0", "must be an array of strings"),
        ('never = [""]', "must be an array of strings"),
        ('wait = "soon"', "must be a time such as 30s"),
        ('wait = "25h"', "must be a time such as 30s"),
        ("wait = true", "must be a time such as 30s"),
        ('longest = "367d"', "must be a time such as 30s"),
        ('longest = "9000h"', "must be a time such as 30s"),
        ('at-end = "kill"', "must be one of tell, end"),
        ('grace = "25h"', "must be a time such as 30s"),
        ("per-user = -1", "must be a number of GPUs"),
        ('per-label = ["team"]', "is not a limit, write LABEL=NUMBER"),
        ("per-gpu = 1", "is unknown; known are shared"),
    ],
)
def test_what_is_wrong_with_it(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        read_leases(written(tmp_path, f"[leases]\n{line}\n"))
    assert f"config.toml: leases.{line.partition(' ')[0]}" in str(error.value)


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("500ms", 0.5), ("30s", 30), ("1h", 3600)])
def test_times(tmp_path: Path, text: str, seconds: float) -> None:
    assert read_leases(written(tmp_path, f'[leases]\nwait = "{text}"\n')).wait == seconds
