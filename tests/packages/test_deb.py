"""The Debian packages: clean for lintian, installed, upgraded under a running container, and purged without a trace.

The short form does it in an overlay of this machine's own system; `make test-packages` also in fresh trees of Debian 12
and 13, where apt brings what the packages depend on.  GPURUN_DEBS=DIR takes packages that are there already.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpurun.cli.table import COMMANDS
from gpurun.toolkit.names import names_of
from tests.packages.trees import HERE, REPOSITORY, TreeUnavailable, debian, run

pytestmark = [
    pytest.mark.native,
    pytest.mark.packages,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("dpkg-buildpackage"), reason="needs root, and dpkg-dev"),
]

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, "")
#: A container of the tree's own programs that sleeps; ``$config`` is where it is made.
CONTAINER = r"""
mkdir -p /run/bundle/rootfs; cd /run/bundle; for d in usr proc sys dev tmp; do mkdir -p rootfs/$d; done
for d in bin lib lib64; do [ ! -L /$d ] || ln -s usr/$d rootfs/$d; done
gpurun spec
python3 - <<'END'
import json
config = json.load(open("config.json"))
config["process"].update(terminal=False, args=["sleep", "1000"])
config["mounts"].append({"destination": "/usr", "source": "/usr", "options": ["rbind", "ro"]})
config["linux"]["resources"] = {}
config["root"]["readonly"] = True
json.dump(config, open("config.json", "w"))
END
"""
#: All files, alternatives, caches and states by any of the packages' names.
NAMES = "\\( -name '*gpurun*' -o -name 'nvidia-c*' -o -name 'amd-c*' \\)"
THERE = f"find /usr /etc /opt /var/lib /var/cache /run -xdev {NAMES} | sort"


@pytest.fixture(scope="session")
def debs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with gpurun.deb, newer.deb (the same, of a later version), toolkit.deb, amd.deb and doc.deb."""
    made = tmp_path_factory.mktemp("debs")
    kept = os.environ.get("GPURUN_DEBS")
    if not kept:
        done = subprocess.run([REPOSITORY / "tools/deb"], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        kept = str(REPOSITORY / "dist")
    newest = {name: max(Path(kept).glob(pattern), key=lambda p: p.stat().st_mtime) for name, pattern in {
        "gpurun.deb": f"gpurun_*_{ARCHITECTURE}.deb", "toolkit.deb": "gpurun-nvidia-toolkit_*_all.deb",
        "amd.deb": "gpurun-amd-toolkit_*_all.deb",
        "doc.deb": "gpurun-doc_*_all.deb"}.items()}  # fmt: skip
    for name, path in newest.items():
        shutil.copy(path, made / name)
    tree = made / "tree"
    subprocess.run(["dpkg-deb", "-R", made / "gpurun.deb", tree], check=True)
    control = tree / "DEBIAN/control"
    lines = control.read_text().splitlines()
    control.write_text("".join([f"{line}.later\n" if line.startswith("Version: ") else f"{line}\n" for line in lines]))
    subprocess.run(["dpkg-deb", "-b", tree, made / "newer.deb"], check=True, capture_output=True)
    return made


@pytest.fixture(
    params=["here", pytest.param("bookworm", marks=pytest.mark.slow), pytest.param("trixie", marks=pytest.mark.slow)]
)
def tree(request: pytest.FixtureRequest) -> Path:
    """A system to install in."""
    if request.param == "here":
        return HERE
    try:
        return debian(request.param)
    except TreeUnavailable as e:
        pytest.skip(str(e))


def install(tree: Path) -> str:
    """How a package is installed there: by apt, which brings what it needs; this machine has all of it."""
    if tree != HERE:
        return "apt-get -qq update; apt-get -qq -y install"
    return "sed -i '/ man-db/d' /var/lib/dpkg/triggers/File; dpkg -i"  # indexing all manual pages takes long


def test_lintian_has_nothing_to_say(debs: Path) -> None:
    if not shutil.which("lintian"):
        pytest.skip("lintian is not installed")
    packages = [debs / "gpurun.deb", debs / "toolkit.deb", debs / "amd.deb", debs / "doc.deb"]
    done = subprocess.run(["lintian", "--allow-root", *packages], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_in_it(debs: Path) -> None:
    listed = subprocess.run(["dpkg-deb", "-c", debs / "gpurun.deb"], capture_output=True, text=True, check=True).stdout
    there = {line.split()[5].lstrip(".") for line in listed.splitlines()}
    assert {f"/usr/share/man/man1/gpurun-{name}.1.gz" for name in COMMANDS} <= there
    assert {
        "/usr/bin/gpurun",
        "/usr/share/man/man1/gpurun.1.gz",
        "/usr/share/bash-completion/completions/gpurun",
        "/usr/share/zsh/vendor-completions/_gpurun",
        "/usr/share/fish/vendor_completions.d/gpurun.fish",
    } <= there
    conffiles = subprocess.run(["dpkg-deb", "-I", debs / "gpurun.deb", "conffiles"], capture_output=True, text=True).stdout
    assert conffiles.split() == ["/etc/gpurun/config.toml"]


def test_the_documents_lead_to_each_other(debs: Path, tmp_path: Path) -> None:
    """From the README of the package on: whatever is there as a link has its file in gpurun or in gpurun-doc."""
    for name in ("gpurun.deb", "doc.deb"):
        subprocess.run(["dpkg-deb", "-x", debs / name, tmp_path], check=True)
    pages = list((tmp_path / "usr/share/doc/gpurun").rglob("*.md"))
    assert {"README.md", "index.md", "docker.md", "ARCHITECTURE.md"} <= {page.name for page in pages}
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())]
    missing = [(p.name, link) for p, link in links if not re.match(r"[a-z]+:", link) and not (p.parent / link).exists()]
    assert len(links) > 50 and missing == []


def test_installed_upgraded_under_a_container_and_purged(debs: Path, tree: Path) -> None:
    script = f"""rm -rf /var/lib/gpurun; {THERE} >/tmp/before; {install(tree)} $1/gpurun.deb >/dev/null
        gpurun --version | head -1
        head -c 4 /usr/bin/gpurun | tail -c 3; echo
        {CONTAINER}
        gpurun run --detach c </dev/null >/dev/null 2>&1
        gpurun create made </dev/null >/dev/null 2>&1
        dpkg -i $1/newer.deb >/dev/null
        dpkg-query -W -f '${{Version}}\\n' gpurun | grep -c later
        gpurun start made
        for id in c made; do
            gpurun state $id | grep '"status"'; gpurun exec $id echo hello of $id
            gpurun kill $id KILL; while gpurun state $id | grep -q running; do sleep .1; done; gpurun delete $id
        done
        gpurun list -q; cd /; rm -r /run/bundle
        mkdir /run/gpurun-leases; touch /run/gpurun-leases/lock  # as requests for free GPUs leave it
        dpkg --purge gpurun >/dev/null; echo left:; {THERE} | comm -13 /tmp/before -"""
    done = run(tree, script, debs, show=(debs,))
    assert done.returncode == 0, done.stderr
    first, elf, later, *rest = done.stdout.splitlines()
    assert (first.startswith("gpurun version "), elf, later) == (True, "ELF", "1")
    said = [f'  "status": "running",\nhello of {name}' for name in ("c", "made")]
    assert "\n".join(rest) == "\n".join([*said, "left:"])


def test_nvidias_names(debs: Path, tree: Path) -> None:
    script = f"""rm -rf /var/lib/gpurun; {THERE} >/tmp/before; {install(tree)} $1/gpurun.deb $1/toolkit.deb >/dev/null
        for name in $2; do readlink -e /usr/bin/$name; done
        for name in nvidia-ctk nvidia-container-cli nvidia-container-runtime; do $name --version | head -1; done
        dpkg --purge gpurun-nvidia-toolkit gpurun >/dev/null; echo left:; {THERE} | comm -13 /tmp/before -"""
    names = names_of(("nvidia",))
    done = run(tree, script, debs, " ".join(names), show=(debs,))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[: len(names)] == ["/usr/bin/gpurun"] * len(names)
    assert "NVIDIA Container Toolkit CLI version" in lines[len(names)] and lines[-1] == "left:"


def test_amds_names(debs: Path, tree: Path) -> None:
    """Who removes the package is told of a daemon.json in which the name stands on."""
    script = f"""rm -rf /var/lib/gpurun; {THERE} >/tmp/before; {install(tree)} $1/gpurun.deb $1/amd.deb >/dev/null
        for name in $2; do readlink -e /usr/bin/$name; done
        amd-ctk version | head -1; amd-container-runtime --version | head -1; mkdir -p /etc/docker
        amd-ctk runtime configure --config-path /etc/docker/daemon.json | tail -1
        dpkg --purge gpurun-amd-toolkit 2>&1 >/dev/null | grep daemon.json
        rm /etc/docker/daemon.json; dpkg --purge gpurun >/dev/null; echo left:; {THERE} | comm -13 /tmp/before -"""
    names = names_of(("amd",))
    done = run(tree, script, debs, " ".join(names), show=(debs,))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[: len(names)] == ["/usr/bin/gpurun"] * len(names)
    ctk, runtime, configured, told, *left = lines[len(names) :]
    assert ctk.startswith("Version: 1.3.") and runtime.startswith("gpurun version ") and "restart docker" in configured
    assert told == "gpurun-amd-toolkit: /etc/docker/daemon.json still names amd-container-runtime" and left == ["left:"]
    fields = subprocess.run(["dpkg-deb", "-f", debs / "amd.deb"], capture_output=True, text=True, check=True).stdout
    assert "\nConflicts: amd-container-toolkit\n" in fields and "\nProvides: amd-container-toolkit\n" in fields


def test_it_conflicts_with_the_real_one(debs: Path) -> None:
    fields = subprocess.run(["dpkg-deb", "-f", debs / "toolkit.deb"], capture_output=True, text=True, check=True).stdout
    said = dict(line.split(": ", 1) for line in fields.splitlines() if ": " in line and not line.startswith(" "))
    for package in ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools"):
        assert package in said["Conflicts"].split(", ")
    assert "nvidia-container-toolkit" in said["Provides"].split(", ")


def test_engines_that_know_it_are_told_when_it_goes(debs: Path) -> None:
    """What install wrote goes, so that Docker starts containers again; what an administrator wrote stays, and is named."""
    script = """dpkg -i $1/gpurun.deb >/dev/null; mkdir -p /etc/docker /etc/cdi /etc/containers/containers.conf.d
        mount -t tmpfs none /usr/local/bin; rm -rf /etc/containerd /var/lib/gpurun
        echo '{"debug": true}' >/etc/docker/daemon.json
        gpurun install docker --default; gpurun install podman; gpurun install containerd; ls /usr/local/bin | wc -l
        sh -c 'reads() { echo Docker reads $(cat /etc/docker/daemon.json); }; trap reads HUP; printf dockerd >/proc/$$/comm
            echo up >/run/up; while [ ! -e /run/down ]; do sleep .1; done' & echo $! >/run/docker.pid
        while [ ! -e /run/up ]; do sleep .1; done
        echo 'hooks: [{path: /usr/bin/gpurun}]' >/etc/cdi/nvidia.yaml; touch /etc/cdi/other.json
        echo '[engine.runtimes]\nmine = ["/usr/bin/gpurun"]' >/etc/containers/containers.conf.d/mine.conf
        dpkg --remove gpurun; touch /run/down; wait
        echo left:; ls -A /usr/local/bin; cd /etc
        # The emulated guest's bed has a list of its own for apt.
        ls -d 2>/dev/null /var/lib/gpurun containerd docker/*gpurun */*.d/gpurun* | grep -v ^apt/ || :"""
    done = run(HERE, script, debs, show=(debs,))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "8" and 'Docker reads {"debug": true}' in done.stdout
    for line in ("/etc/containers/containers.conf.d/mine.conf still names", "/etc/cdi/nvidia.yaml has hooks that call"):
        assert f"gpurun: {line} /usr/bin/gpurun" in done.stderr
    assert done.stdout.endswith("left:\n")
    assert "daemon.json still names" not in done.stderr and "other.json" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "knows_the_rule"), [("bookworm", False), ("trixie", True)])
def test_the_profile_of_apparmor(debs: Path, suite: str, knows_the_rule: bool) -> None:
    """It is there where the parser knows the rule of user namespaces (AppArmor 4), and goes unless it has been changed."""
    try:
        tree = debian(suite)
    except TreeUnavailable as e:
        pytest.skip(str(e))
    script = f"""{install(tree)} apparmor $1/gpurun.deb >/dev/null; cd /etc/apparmor.d
        [ ! -e gpurun ] || {{ apparmor_parser --skip-kernel-load --skip-cache gpurun && apparmor_parser --names gpurun; }}
        ls | grep gpurun || echo none
        dpkg -i $1/newer.deb >/dev/null; ls | grep gpurun || echo none
        dpkg --remove gpurun >/dev/null; echo left $(ls | grep gpurun)
        dpkg -i $1/gpurun.deb >/dev/null
        [ ! -e gpurun ] || {{ echo '# changed' >>gpurun; dpkg --remove gpurun >/dev/null; tail -n 1 gpurun; }}"""
    done = run(tree, script, debs, show=(debs,))
    assert done.returncode == 0, done.stderr
    there = ["gpurun", "gpurun", "gpurun", "left", "# changed"]
    assert done.stdout.splitlines() == (there if knows_the_rule else ["none", "none", "left"])
