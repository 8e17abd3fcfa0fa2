"""What Tab offers: containers and not caches, signals, and the values that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simdriver import Options, make, uuid

from .test_main import gpurun


def offered(words: str, *root: str, env: dict[str, str] | None = None) -> list[str]:
    """The words that the shell is told for the last of *words*."""
    line = " ".join(["gpurun", *root, words])
    asked = {"_GPURUN_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = gpurun(env=asked | (env or {}))
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


def test_gpus_of_this_host(tmp_path: Path) -> None:
    driver = make(tmp_path, Options(gpus=2, mig=((1, 1, 0),)))
    env = {"GPURUN_SYSROOT": str(driver.path)}
    every = ["0", "1", uuid(0), uuid(1), "free"]
    for words in ("gpu attach web ", "gpu detach web 0 ", "update --gpus "):
        assert [word for word in offered(words, env=env) if not word.startswith("MIG-")] == every, words
    assert offered(f"gpu attach web {uuid(1)[:-4]}", env=env) == [uuid(1)]
    assert offered("update --gpus 0,1", env=env) == ["0,1"]
    assert offered("gpu attach web ", env={"GPURUN_SYSROOT": str(tmp_path / "none")}) == [""]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_which_gpu_that_is(tmp_path: Path, shell: str) -> None:
    driver = make(tmp_path, Options(gpus=1))
    words = {"zsh": {"COMP_WORDS": "gpurun gpu attach web ", "COMP_CWORD": "4"},
             "fish": {"COMP_WORDS": "gpurun gpu attach web ", "COMP_CWORD": ""}}[shell]  # fmt: skip
    env = {"GPURUN_SYSROOT": str(driver.path), "_GPURUN_COMPLETE": f"{shell}_complete", **words}
    said = gpurun(env=env).stdout
    assert uuid(0) in said and "A100" in said
