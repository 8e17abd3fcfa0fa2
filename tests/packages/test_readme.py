"""README's own lines, as they stand, executed in fresh Debian 12, 13 and unstable: clone, demo, package, Docker, purge.

The tree is what a reader has before: a minimal Debian with systemd, git, make and Docker.  The GPUs are those of a simulated
driver, which Docker and the shell are told of as docs/gpus.md says; the image is one of a C library and a busybox, under the
name that README's line has, for a test pulls nothing.  What the lines bring from Debian's mirror they bring themselves.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.trees import REPOSITORY, TreeUnavailable, debian
from tests.simdriver import Options, make, uuid

README = REPOSITORY / "README.md"
BED = REPOSITORY / "tests/beds/systemd-bed"
#: Lines of README that are not executed, and why.
NOT_RUN = {"make test": "the suite that this test is one of", "gpurun help create": "test_help.py"}
IMAGE = "debian:stable-slim"


def commands(text: str, title: str) -> list[str]:
    """The commands in the section *title* of README's *text*: indented lines outside of fences, without their comments."""
    section = re.split(r"^## ", text.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    section = re.sub(r"^```.*?^```", "", section, flags=re.MULTILINE | re.DOTALL)
    lines = [line.partition(" #")[0].strip() for line in section.splitlines() if line.startswith("    ")]
    return [line for line in lines if line and line not in NOT_RUN]


def test_the_lines_are_found() -> None:
    text = README.read_text()
    assert commands(text, "Try it") == ["make demo", "make demo VENDOR=amd"]
    *install, uninstall = commands(text, "Install")
    assert [line.split()[0] for line in install] == ["make", "gpurun", "gpurun", "docker"] and install[3].endswith(
        "nvidia-smi"
    )
    assert uninstall == "gpurun uninstall docker --restart && apt purge gpurun"
    look = commands(text, "Look before you run")
    assert {line.split()[1] for line in look} == {"gpu", "explain", "stats", "validate"}


#: What the reader has: $1 the repository, $2 the driver, $3 the image.  Whatever asks is answered with yes.
BEFORE = r"""
exec 2>&1
export LC_ALL=C DEBIAN_FRONTEND=noninteractive HOME=/root
cd /root
printf 'APT::Get::Assume-Yes "true";\nAPT::Install-Recommends "false";\n' >/etc/apt/apt.conf.d/90answers
# Nothing of the network that containers have is needed, and it would be this machine's.
mkdir -p /etc/docker; echo '{"bridge": "none", "iptables": false, "ip6tables": false}' >/etc/docker/daemon.json
# An overlay takes no overlay as its upper directory.
for dir in containerd docker; do mkdir -p /var/lib/$dir; mount -t tmpfs none /var/lib/$dir; done
apt-get -qq update; apt-get -qq install git make docker.io ca-certificates >/dev/null
command -v docker >/dev/null || apt-get -qq install docker-cli >/dev/null
for unit in docker containerd; do
    mkdir -p /etc/systemd/system/$unit.service.d
    # It is started once more than a reader starts it, all within a minute, and systemd would let it be so three times.
    printf '[Unit]\nStartLimitIntervalSec=0\n[Service]\nEnvironment=GPURUN_SYSROOT=%s\n' "$2" \
        >/etc/systemd/system/$unit.service.d/simulated.conf
done
systemctl daemon-reload; systemctl restart containerd docker
docker import "$3" debian:stable-slim >/dev/null
cp /etc/docker/daemon.json /tmp/before.json
there() {
    find /usr /etc /opt /var/lib /var/cache /run -xdev \( -name '*gpurun*' -o -name 'nvidia-c*' \) | sort
}
there >/tmp/before
git config --global --add safe.directory '*'
run() { echo "\$ $1"; bash -euo pipefail -c "$1" </dev/null || { echo "exit code $?"; exit 1; }; }
git clone -q "$1" gpurun; cd gpurun
"""
AFTER = r"""
cmp /etc/docker/daemon.json /tmp/before.json && echo as before
docker run --rm debian:stable-slim echo Docker goes on
echo left:; there | comm -13 /tmp/before -
"""


def script(text: str) -> str:
    """All of it, with the lines of README's *text* each as a line of its own."""
    *install, uninstall = commands(text, "Install")
    look = [line.replace("BUNDLE", "examples/bundles/gpu") for line in commands(text, "Look before you run")]
    parts = [BEFORE, *[f"run {quoted(line)}" for line in commands(text, "Try it") + install], 'export GPURUN_SYSROOT="$2"']
    for line in look:  # the doctor finds what a bed lacks, and stats goes on until Ctrl-C
        stats = line.endswith("stats")
        parts.append(
            f"run {quoted(f'timeout --preserve-status --signal INT 3 {line}' if stats else f'{line} || [ $? = 1 ]')}"
        )
    return "\n".join([*parts, "unset GPURUN_SYSROOT", f"run {quoted(uninstall)}", AFTER])


def quoted(line: str) -> str:
    return "'" + line.replace("'", "'\\''") + "'"


@pytest.fixture
def shown() -> Iterator[Path]:
    """A directory that the bed shows at the same path."""
    made = Path(tempfile.mkdtemp(prefix="gpurun-readme.", dir="/var/tmp"))
    yield made
    shutil.rmtree(made)


def image(path: Path, tree: Path) -> None:
    """An archive of a root with *tree*'s C library and a static busybox."""
    loader = Path("lib64/ld-linux-x86-64.so.2") if os.uname().machine == "x86_64" else Path("lib/ld-linux-aarch64.so.1")
    libc = Path(f"lib/{os.uname().machine}-linux-gnu/libc.so.6")
    with tarfile.open(path, "w") as archive:
        for name in (loader, libc):
            archive.add((tree / "usr" / name).parent.resolve() / name.name, str(name), recursive=False)
        archive.add(tree / "usr" / libc.parent / loader.name, str(libc.parent / loader.name))
        archive.add(str(shutil.which("busybox")), "bin/busybox")
        for applet in ("sh", "echo", "cat"):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)


@pytest.mark.native
@pytest.mark.packages
@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("busybox") or not shutil.which("git"),
    reason="needs root, git and a static busybox",
)
@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid"])
def test_from_the_clone_to_the_purge(suite: str, shown: Path) -> None:
    try:
        tree = debian(suite, "systemd", "dbus")
    except TreeUnavailable as e:
        pytest.skip(str(e))
    cloned = subprocess.run(
        ["git", "clone", "-q", "--bare", REPOSITORY, shown / "gpurun.git"], capture_output=True, text=True
    )
    assert cloned.returncode == 0, cloned.stderr
    driver = make(shown / "driver", Options(gpus=2))
    image(shown / "image.tar", tree)
    (shown / "lines").write_text(script(README.read_text()))
    words = [str(shown / name) for name in ("lines", "gpurun.git", "driver", "image.tar")]
    assert words[2] == str(driver.path)
    command = [str(BED), "--root", str(tree), "--network", "--limit", "2400", "--", "bash", "-eu", *words]
    clean = {"PATH": os.environ["PATH"], "HOME": "/root"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=2500, env=clean, cwd="/")
    print(done.stdout, file=sys.stderr)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    lines = done.stdout.splitlines()
    smi = next(i for i, line in enumerate(lines) if line.startswith("$ docker run"))
    given = [line for line in lines[smi + 1 : smi + 6] if line.startswith("GPU ")]
    assert [uuid(i) in line for i, line in enumerate(given)] == [True, True], done.stdout
    assert any(line.endswith("Left in the image: nothing.") for line in lines), "the demo"
    assert any(uuid(1) in line for line in lines[smi + 6 :]), "gpu list"
    assert lines[-3:] == ["as before", "Docker goes on", "left:"], done.stdout
