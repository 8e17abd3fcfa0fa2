"""The real NVIDIA userspace from Debian's non-free archive: downloaded when a test wants it, never part of the project.

The licence lets Debian redistribute unmodified packages; nobody else is given a copy.  They are unpacked (``dpkg -x``), not
installed: no maintainer script runs.  Kept in ``.cache/`` of the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.simdriver import Options, SimulatedDriver, make

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = (
    "libcuda1",
    "libnvidia-ml1",
    "libnvidia-cfg1",
    "libnvidia-ptxjitcompiler1",
    "libnvidia-encode1",
    "libnvcuvid1",
    "nvidia-smi",
)
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def unpacked() -> Path:
    """The directory with the unpacked packages; skips the calling test, with the reason, where it cannot be had."""
    cache = REPOSITORY / ".cache/nvidia-userspace"
    root = cache / "root"
    if (cache / "complete").exists():
        return root
    if os.uname().machine != "x86_64" or not shutil.which("apt-get") or not os.path.exists(KEYRING):
        pytest.skip("the real driver's libraries come from Debian's amd64 archive: this is no such host")
    codename = next(
        (
            line.partition("=")[2].strip()
            for line in Path("/etc/os-release").read_text().splitlines()
            if "VERSION_CODENAME" in line
        ),
        "",
    )
    shutil.rmtree(cache, ignore_errors=True)
    for name in ("lists/partial", "archives/partial", "debs", "root"):
        (cache / name).mkdir(parents=True)
    mirror = debian_mirror()
    if not mirror:
        pytest.skip("the real driver's libraries come from Debian's archive: this machine's apt names none")
    (cache / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {codename} contrib non-free\n")
    options = [
        f"Dir::Etc::SourceList={cache}/sources.list",
        "Dir::Etc::SourceParts=-",
        f"Dir::State::Lists={cache}/lists",
        f"Dir::Cache={cache}",
        "APT::Sandbox::User=root",
        "Acquire::Retries=1",
        "Acquire::http::Timeout=20",
    ]
    apt = ["apt-get", "-q", *[word for option in options for word in ("-o", option)]]
    for command in ([*apt, "update"], [*apt, "download", *PACKAGES]):
        done = subprocess.run(command, cwd=cache / "debs", capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"the real driver's libraries cannot be downloaded: {done.stderr.strip()[-200:]}")
    for package in (cache / "debs").glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
    for name in ("lists", "archives", "debs"):
        shutil.rmtree(cache / name)
    (cache / "complete").touch()
    return root


def debian_mirror() -> str:
    """The archive that this machine's own apt uses, "" when it names none of Debian's."""
    sources = Path("/etc/apt")
    files = [sources / "sources.list", *sources.glob("sources.list.d/*.list"), *sources.glob("sources.list.d/*.sources")]
    text = "\n".join([file.read_text() for file in files if file.exists()])
    for match in re.finditer(r"^(?:deb +(?:\[[^]]*\] +)?|URIs: *)(https?://[^ \n]+)", text, re.MULTILINE):
        if "security" not in match[1] and match[1].rstrip("/").endswith("debian"):
            return match[1]
    return ""


def version_of(root: Path) -> str:
    return next(p.name.partition(".so.")[2] for p in root.rglob("libcuda.so.*.*"))


def host_with_real_userspace(directory: Path) -> SimulatedDriver:
    """*directory* as a host: the real libraries, and the simulated kernel side of that version."""
    root = unpacked()
    subprocess.run(["cp", "-a", "--reflink=auto", f"{root}/.", str(directory)], check=True)
    return make(directory, Options(gpus=1, version=version_of(root), no_userspace=True))
