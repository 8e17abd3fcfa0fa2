"""One file, many names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpurun import __version__
from gpurun.toolkit.names import MAKERS, PROGRAMS, RUNTIMES, names_of, program

from .conftest import PROGRAM, Call


@pytest.mark.parametrize(
    ("name", "flag", "words"),
    [
        ("nvidia-container-runtime", "--version", f"gpurun version {__version__}"),
        ("nvidia-container-runtime.cdi", "--version", f"gpurun version {__version__}"),
        ("nvidia-container-runtime.legacy", "--version", f"gpurun version {__version__}"),
        ("nvidia-container-runtime-hook", "-version", "NVIDIA Container Runtime Hook version"),
        ("nvidia-container-toolkit", "-version", "NVIDIA Container Runtime Hook version"),
        ("nvidia-container-cli", "-V", "cli-version: 1."),
        ("nvidia-ctk", "--version", "NVIDIA Container Toolkit CLI version 1."),
        ("nvidia-cdi-hook", "--version", "NVIDIA CDI Hook CLI version 1.20.0 (gpurun)"),
        ("amd-container-runtime", "--version", f"gpurun version {__version__}"),
        ("amd-ctk", "version", "Version: 1.3."),
    ],
)
def test_each_name_is_a_program(call: Call, name: str, flag: str, words: str) -> None:
    done = call(name, flag)
    assert (done.returncode, done.stderr) == (0, "") and words in done.stdout


def test_all_names_are_tested_and_exist() -> None:
    for name in PROGRAMS:
        assert callable(program(name)), name
    assert program("nvidia-smi") is None and program("gpurun") is None and not set(PROGRAMS) & set(RUNTIMES)


def install(directory: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "install-names", *more, directory], capture_output=True, text=True, timeout=60, check=False
    )


def test_install_names(tmp_path: Path) -> None:
    done = install(tmp_path)
    assert done.returncode == 0, done.stderr
    assert {p.name: os.readlink(p) for p in tmp_path.iterdir()} == dict.fromkeys((*RUNTIMES, *PROGRAMS), str(PROGRAM))
    assert len(done.stdout.splitlines()) == len(RUNTIMES) + len(PROGRAMS)
    assert install(tmp_path).stdout == "", "a second time there is nothing to do"


@pytest.mark.parametrize("maker", MAKERS)
def test_the_names_of_one_maker(tmp_path: Path, maker: str) -> None:
    """Docker's --gpus means NVIDIA's GPUs wherever NVIDIA's hook is found: who has AMD's alone makes AMD's names alone."""
    assert install(tmp_path, "--maker", maker).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == set(names_of((maker,)))
    done = install(tmp_path, "--maker", "voodoo")
    assert done.returncode == 1 and "--maker=voodoo: it must be nvidia or amd" in done.stderr


@pytest.mark.parametrize("make_link", [False, True])
def test_what_is_there_is_replaced_only_when_told(tmp_path: Path, make_link: bool) -> None:
    """The last name is taken: nothing at all is made, so that an installation is never half of one and half of another."""
    taken = tmp_path / [*RUNTIMES, *PROGRAMS][-1]
    if make_link:
        taken.symlink_to("/usr/bin/other")
    else:
        taken.write_text("#!/bin/sh\n")
    done = install(tmp_path)
    assert done.returncode == 1 and str(taken) in done.stderr and "--force" in done.stderr
    assert list(tmp_path.iterdir()) == [taken]
    done = install(tmp_path, "--force")
    assert done.returncode == 0 and f"{taken} -> {PROGRAM} (replaced)" in done.stdout and os.readlink(taken) == str(PROGRAM)


def test_no_such_directory(tmp_path: Path) -> None:
    done = install(tmp_path / "none")
    assert done.returncode == 1 and "no such file or directory" in done.stderr


def test_a_source_tree_cannot_be_called_by_other_names(tmp_path: Path) -> None:
    from gpurun.__main__ import main

    assert main(["gpurun", "install-names", str(tmp_path)]) == 1 and not list(tmp_path.iterdir())


def test_the_compiled_front_has_the_names_too(tmp_path: Path) -> None:
    fast = PROGRAM.with_name("gpurun-fast")
    if not fast.exists():
        pytest.skip(f"{fast} is not there (make build makes it where there is a C compiler)")
    subprocess.run([fast, "install-names", tmp_path], check=True, capture_output=True, timeout=60)
    for name, flag, words in (
        ("nvidia-container-cli", "-V", "cli-version: 1."),
        ("nvidia-container-runtime", "-v", "gpurun "),
        ("amd-ctk", "version", "Version: 1.3."),
        ("amd-container-runtime", "-v", "gpurun "),
    ):
        assert os.readlink(tmp_path / name) == str(fast)
        done = subprocess.run([tmp_path / name, flag], capture_output=True, text=True, timeout=60, check=True)
        assert words in done.stdout


def test_links_that_are_being_made_stay(tmp_path: Path) -> None:
    """Of two at once none removes what the other is about to rename; what a killed one has left goes."""
    beside, left = [tmp_path / f"nvidia-ctk.gpurun.{pid}" for pid in (os.getpid(), 1 << 22)]
    for path in (beside, left):
        path.symlink_to("/nowhere")
    subprocess.run([PROGRAM, "install-names", tmp_path], check=True, capture_output=True, timeout=60)
    assert beside.is_symlink() and not left.is_symlink() and (tmp_path / "nvidia-ctk").is_symlink()
