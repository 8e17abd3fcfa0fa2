"""What pyproject.toml cannot say: the ``gpurun`` of a wheel is the one file that ``make build`` makes.

A console script would read its modules through ``importlib``, with ``site`` and the environment's paths: 36 ms for ``state``
instead of 6, or 1 with the compiled front.  So the build of a wheel makes that file, with the front where there is a C
compiler, and the wheel carries it as its script; installing only copies it.  It runs under any Python from 3.11 on, so one
wheel serves them all.  In an editable installation the command is a console script, for there the tree is what counts.

GPURUN_BUILD_FOR=aarch64-linux-gnu makes the wheel of another architecture, with a cross compiler.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "src"))

from gpurun.builder import front, launcher, release  # noqa: E402

#: The architecture that the wheel is for, by its multiarch name; empty: this machine's.
MULTIARCH = os.environ.get("GPURUN_BUILD_FOR", "")


class BuildScripts(Command):
    """``build_scripts``: the directory of a wheel's programs with ``gpurun`` in it."""

    description = "make the one-file gpurun"
    user_options: list[tuple[str, str, str]] = []

    def initialize_options(self) -> None:
        self.build_dir: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_scripts", "build_dir"))

    def run(self) -> None:
        output = Path(str(self.build_dir), "gpurun")
        if not front.build(output, MULTIARCH):
            launcher.put(
                launcher.assemble(launcher.real_interpreter(), launcher.git_commit(), multiarch=MULTIARCH),
                output,
                run=not MULTIARCH,
            )

    def get_source_files(self) -> list[str]:
        return []


class BuildPy(build_py):
    """Python alone: what is compiled is in the program."""

    def run(self) -> None:
        super().run()
        for path in Path(self.build_lib).rglob("*.c"):
            path.unlink()


class BdistWheel(bdist_wheel):
    """A wheel for any Python, but for one architecture."""

    def get_tag(self) -> tuple[str, str, str]:
        machine = MULTIARCH.partition("-")[0] or os.uname().machine
        return "py3", "none", f"{platform(Path(self.bdist_dir, self.data_dir, 'scripts', 'gpurun'))}_{machine}"


def platform(program: Path) -> str:
    """Where *program* runs: on every Linux with the C library that its compiled front asks for; without a front, on this
    machine, whose interpreter its first line names."""
    minor = front.glibc_of(program.read_bytes())
    return f"manylinux_2_{minor}" if minor else "linux"


if "editable_wheel" in sys.argv:
    setup(version=release.version(), entry_points={"console_scripts": ["gpurun = gpurun.__main__:main"]})
else:
    commands = {"build_scripts": BuildScripts, "build_py": BuildPy, "bdist_wheel": BdistWheel}
    setup(version=release.version(), scripts=["gpurun"], cmdclass=commands)
