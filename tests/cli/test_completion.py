"""What Tab offers: containers and not caches, signals, and the values that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_main import gpurun


def offered(words: str, *root: str) -> list[str]:
    """The words that the shell is told for the last of *words*."""
    line = " ".join(["gpurun", *root, words])
    env = {"_GPURUN_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = gpurun(env=env)
    assert done.returncode == 0, done.stderr
    return [entry.partition(",")[2] for entry in done.stdout.splitlines()]


def test_containers_alone(tmp_path: Path) -> None:
    for name in ("web", "wave", ".gpus", ".seccomp"):
        (tmp_path / name).mkdir()
    assert offered("kill ", "--root", str(tmp_path)) == ["wave", "web"]
    assert offered("state we", "--root", str(tmp_path)) == ["web"]
    assert offered("gpu attach we", "--root", str(tmp_path)) == ["web"]


def test_fish_keeps_what_stands_behind_a_comma() -> None:
    script = gpurun(env={"_GPURUN_COMPLETE": "fish_source"}).stdout
    assert script.count("string split") == script.count('string split --max 1 ","') == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("kill web K", ["KILL"]),
        ("list --format ", ["table", "json"]),
        ("ps --format j", ["json"]),
        ("gpu list --format ", ["table", "json"]),
        ("cdi generate --format y", ["yaml"]),
        ("cdi generate --mode im", ["imex"]),
        ("checkpoint --manage-cgroups-mode s", ["soft", "strict"]),
        ("--log-format ", ["text", "json"]),
        ("install co", ["containerd"]),
        ("uninstall cr", ["crio"]),
        ("gpu ", ["list", "doctor", "explain"]),
    ],
)
def test_values(words: str, expected: list[str]) -> None:
    found = offered(words)
    assert found == expected if not words.startswith("gpu ") or "--" in words else set(expected) <= set(found)
