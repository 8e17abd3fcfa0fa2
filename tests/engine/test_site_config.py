"""The site's file."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gpurun.cgroup.placement import POLICIES, Site, read_policies
from gpurun.engine.gpus.device_edits import with_site
from gpurun.engine.site_config import DEFAULT_PATH, read_site, read_unknown, site_mistakes, site_path
from gpurun.errors import ConfigError, GpurunError
from gpurun.library.explanation import explain_plan
from gpurun.record import replace
from tests.engine.plan.planning import HOST, base, plan, set_path


def test_where_it_is() -> None:
    assert site_path({}) == DEFAULT_PATH
    assert site_path({b"GPURUN_CONFIG": b"/dev/null"}) == "/dev/null"
    for path in (b"/nonexistent", b"/dev/null/x"):
        with pytest.raises(ConfigError, match="GPURUN_CONFIG: there is no file /"):
            site_path({b"GPURUN_CONFIG": path})


def test_all_tables_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    env = {b"GPURUN_CONFIG": os.fsencode(path)}
    for good in ("", '[placement]\nio.weight = 200\n[leases]\nshared = "refuse"\n'):
        path.write_text(good)
        assert site_mistakes(env) == ()
    tables = {"placement": "io.wait", "leases": "x", "shares": "x", "restore": "x"}
    for table, key in tables.items():
        path.write_text(f"[{table}]\n{key} = 1")
        (text,) = site_mistakes(env)
        assert text.startswith(f"{path}: {table}.{key}")
    path.write_text("".join([f"[{table}]\n{key} = 1\n" for table, key in tables.items()]))
    assert len(site_mistakes(env)) == 4, "a mistake in one table hides none in another"
    for bad in ("[other]\nx = 1", "no TOML", None):
        path.write_text(bad) if bad is not None else path.unlink()
        assert len(site_mistakes(env)) == 1


def test_no_file(tmp_path: Path) -> None:
    assert read_site(str(tmp_path / "none")) is None
    with pytest.raises(GpurunError, match=r"read .*: is a directory"):
        read_site(str(tmp_path))


def test_values(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        '# ours\n[placement]\nmemory.high = "0.9"\nmemory.oom.group = true\nio.weight = 200\n"gpu.local" = false\n'
    )
    expected = (("memory.high", "0.9"), ("memory.oom.group", "true"), ("io.weight", "200"), ("gpu.local", "false"))
    assert read_site(str(path)) == Site(str(path), expected)


def test_the_file_that_packages_bring(tmp_path: Path) -> None:
    """Nothing is on in it; each policy has one line, which is good without its #."""
    text = (Path(__file__).resolve().parents[2] / "examples/config.toml").read_text()
    path = tmp_path / "config.toml"
    path.write_text(text)
    assert read_site(str(path)) == Site(str(path), ())
    path.write_text(re.sub(r"^#(?=\S)", "", text, flags=re.MULTILINE))
    site = read_site(str(path))
    assert site is not None and sorted(name for name, _ in site.policies) == sorted(POLICIES)
    assert {entry.policy for entry in read_policies({}, site)} == set(POLICIES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[placement]\nmemory.high = [1]", "placement.memory.high: must be a string"),
        (
            "[plaecment]\nio.weight = 3",
            r"plaecment.io.weight: is unknown: the tables .* are \[placement\], .*\[amd\]",
        ),
        ("[placement]\nio.weight 3", "line 2: is not valid TOML"),
    ],
)
def test_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_site(str(path))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ('[amd]\nunknown = "ignore"', {"GPURUN_AMD_UNKNOWN": "ignore"}),
        ('[amd]\nunknown = "refuse"\n[placement]\nio.weight = 3', {"GPURUN_AMD_UNKNOWN": "refuse"}),
        ('[amd]\nunknown = "no"', 'amd.unknown: must be "refuse" or "ignore"'),
        ('[amd]\nunknown = ["ignore"]', 'amd.unknown: must be "refuse" or "ignore"'),
        ('[amd]\nunkown = "ignore"', r"amd.unkown: is unknown: the table \[amd\] has one key, unknown"),
    ],
)
def test_devices_that_the_host_does_not_have(tmp_path: Path, text: str, found: dict[str, str] | str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    if isinstance(found, str):
        with pytest.raises(ConfigError, match=found):
            read_unknown(str(path))
        assert len(site_mistakes({b"GPURUN_CONFIG": str(path).encode()})) == 1
        return
    assert read_unknown(str(path)) == found and site_mistakes({b"GPURUN_CONFIG": str(path).encode()}) == ()
    assert with_site({"A": "b"}, {b"GPURUN_CONFIG": str(path).encode()}) == {"A": "b", **found}
    own = {"GPURUN_AMD_UNKNOWN": "own"}
    assert with_site(own, {b"GPURUN_CONFIG": str(path).encode()}) == own


def test_explain_says_who_asked_and_what_is_left_out() -> None:
    site = Site("/etc/gpurun/config.toml", (("memory.high", "0.5"), ("gpu.local", "true")))
    config = set_path(base(), "linux.resources.memory", {"limit": 1 << 30})
    made = plan(set_path(config, "linux.cgroupsPath", "/c1"), replace(HOST, site=site))
    text = "".join([f"{line}\n" for line in explain_plan(made)])
    assert f"memory.high = {1 << 29}   (/etc/gpurun/config.toml: placement.memory.high)" in text
    assert "/etc/gpurun/config.toml: placement.gpu.local is left out: the container has no GPUs" in text
    assert made.warnings == ()
