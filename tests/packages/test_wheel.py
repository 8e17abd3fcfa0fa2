"""The wheel and the source archive: one wheel for every Python, whose command is the one-file program.

The short form installs the wheel under this Python; `make test-packages` under every other one that is here, the source
archive where no wheel fits, and both where Python is 3.14 (Debian unstable).  GPURUN_DIST=DIR takes what is there already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from gpurun import __version__
from gpurun.builder.front import BASE, glibc_of
from gpurun.builder.release import version
from tests.packages.trees import REPOSITORY, TreeUnavailable, debian, run

pytestmark = pytest.mark.packages

#: What an installation must do: the command, the import, and a command that needs the libraries.
CHECK = """{bin}/gpurun --version | head -1; {bin}/gpurun help create | head -1
    {bin}/python -c 'import gpurun, sys; print(gpurun.__version__, sys.version_info[1])'
    head -c 4 {bin}/gpurun | tail -c 3"""


def said(minor: int) -> list[str]:
    return [f"gpurun version {__version__}", "Usage: gpurun create [OPTIONS] ID", f"{__version__} {minor}", "ELF"]


def pythons() -> list[Path]:
    """The interpreters here from 3.11 on, one of each minor version: the system's, then those of pyenv."""
    found: dict[int, Path] = {}
    for directory in (Path("/usr/bin"), Path("/usr/local/bin"), *sorted(Path.home().glob(".pyenv/versions/*/bin"))):
        for path in sorted(directory.glob("python3.[0-9]*")):
            digits = path.name.removeprefix("python3.")
            if digits.isdigit() and int(digits) >= 11:
                found.setdefault(int(digits), path)
    return [found[minor] for minor in sorted(found)]


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel of this machine and the source archive."""
    kept = os.environ.get("GPURUN_DIST")
    if not kept:
        done = subprocess.run([REPOSITORY / "tools/dist"], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        kept = str(REPOSITORY / "dist")
    made = tmp_path_factory.mktemp("dist")
    for pattern in (f"*-{version()}-*_{os.uname().machine}.whl", f"*-{version()}.tar.gz"):
        (found,) = Path(kept).glob(pattern)
        shutil.copy(found, made)
    return made


def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


def installed(python: Path, what: Path, directory: Path) -> list[str]:
    """What an environment of *python* with *what* in it answers."""
    subprocess.run([python, "-m", "venv", directory], check=True)
    pip = [str(directory / "bin/python"), "-m", "pip", "-q", "--disable-pip-version-check", "install", str(what)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(directory)}
    script = CHECK.format(bin=directory / "bin")
    return subprocess.run(
        ["sh", "-euc", script], capture_output=True, text=True, env=environ, check=True
    ).stdout.splitlines()


def test_the_wheel_carries_the_one_file_program(dist: Path) -> None:
    path = wheel(dist)
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        (script,) = [name for name in names if name.endswith(".data/scripts/gpurun")]
        program = archive.read(script)
    assert program.startswith(b"\x7fELF") and program[BASE : BASE + 2] == b"#!"
    assert f"-py3-none-manylinux_2_{glibc_of(program)}_{os.uname().machine}.whl" in path.name
    assert not [name for name in names if name.endswith((".c", "entry_points.txt"))]


def test_the_archive_has_all_that_a_clone_has(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    command = ["git", "-C", str(REPOSITORY), "ls-files"]
    try:
        tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a clone")
    missing = [name for name in tracked if name and (REPOSITORY / name).exists() and name not in names]
    assert missing == []


def test_installed_under_this_python(dist: Path, tmp_path: Path) -> None:
    base = Path(getattr(sys, "_base_executable", sys.executable))
    assert installed(base, wheel(dist), tmp_path / "venv") == said(sys.version_info.minor)


@pytest.mark.slow
@pytest.mark.parametrize("python", pythons(), ids=lambda path: path.name)
def test_installed_under_every_python_that_is_here(dist: Path, tmp_path: Path, python: Path) -> None:
    minor = int(python.name.removeprefix("python3."))
    assert installed(python, wheel(dist), tmp_path / "venv") == said(minor)


@pytest.mark.slow
def test_the_archive_is_built_where_it_is_installed(dist: Path, tmp_path: Path) -> None:
    """By the newest Python here, without git and with its libraries from the index."""
    (path,) = dist.glob("*.tar.gz")
    python = pythons()[-1]
    assert installed(python, path, tmp_path / "venv") == said(int(python.name.removeprefix("python3.")))


@pytest.mark.slow
@pytest.mark.native
def test_under_debian_unstables_python(dist: Path) -> None:
    try:
        tree = debian("sid")
    except TreeUnavailable as e:
        pytest.skip(str(e))
    # A mirror of the index may have a certificate of an authority that only this machine knows.
    authorities = Path(os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"))
    if authorities.exists():
        shutil.copy(authorities, dist / "authorities.crt")
    script = f"""[ ! -e $2 ] || export PIP_CERT=$2 SSL_CERT_FILE=$2
        apt-get -qq update; apt-get -qq -y install python3-venv >/dev/null; python3 -m venv /tmp/venv
        /tmp/venv/bin/pip -q install $1 >/dev/null; {CHECK.format(bin="/tmp/venv/bin")}"""
    done = run(tree, script, wheel(dist), dist / "authorities.crt", show=(dist,))
    assert done.returncode == 0, done.stderr
    first, usage, imported, elf = done.stdout.splitlines()
    minor = int(imported.split()[1])
    assert [first, usage, imported, elf] == said(minor) and minor >= 14
