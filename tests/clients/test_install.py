"""`install` and `uninstall`: each client's own configuration, changed and given back, and read by the client itself."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpurun.cli.parse import parse
from gpurun.clients import ledger
from gpurun.clients.files import KEPT, apply
from gpurun.clients.install import CLIENTS, Setup, plan_install, plan_uninstall
from gpurun.clients.toml_files import RuntimeEntry
from gpurun.errors import ConfigError, GpurunError
from gpurun.toolkit.install import install, uninstall
from tests.clients.containerd_config import CONTAINERD, V2, V3

PROGRAM = "/opt/gpurun"
DAEMON_JSON = '{\n  "log-driver": "journald",\n\n  "runtimes": {"kata": {"path": "/usr/bin/kata"}}\n}\n'
TEXTS = {
    "docker": DAEMON_JSON,
    "containerd": CONTAINERD,
    "podman": '[engine]\nruntime_supports_json = ["crun"]  # only\n',
    "crio": '[crio.runtime]\ndefault_runtime = "runc"\n[crio.runtime.runtimes.runc]\nmonitor_path = "/usr/bin/conmon"\n',
}
NAMES = {"docker": "daemon.json", "containerd": "config.toml", "podman": "containers.conf", "crio": "crio.conf"}


def setup_of(client: str, directory: Path, default: bool = False, **more: Any) -> Setup:
    return Setup(client, RuntimeEntry("gpurun", PROGRAM, default), str(directory / NAMES[client]), **more)


def done(asked: Setup) -> dict[str, str]:
    """What is in the directory after `install`."""
    for change in plan_install(asked):
        apply(change)
    return tree(Path(asked.path).parent)


def undone(asked: Setup) -> dict[str, str]:
    for change in plan_uninstall(asked):
        apply(change)
    return {name: text for name, text in tree(Path(asked.path).parent).items() if not name.endswith(KEPT)}


def tree(directory: Path) -> dict[str, str]:
    return {str(p.relative_to(directory)): p.read_text() for p in sorted(directory.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("before", ["nothing", "a file"])
@pytest.mark.parametrize("client", CLIENTS)
def test_there_and_back(client: str, before: str, default: bool, tmp_path: Path) -> None:
    if before == "a file":
        (tmp_path / NAMES[client]).write_text(TEXTS[client])
    start = tree(tmp_path)
    asked = setup_of(client, tmp_path, default)
    first = done(asked)
    assert any(PROGRAM in text for text in first.values())
    assert plan_install(asked) == (), "the second time there is nothing to do"
    assert undone(asked) == start
    assert plan_uninstall(asked) == ()


@pytest.mark.parametrize("client", ["docker", "containerd"])
def test_what_was_changed_since_stays(client: str, tmp_path: Path) -> None:
    """The administrator's own change after `install` is not lost by `uninstall`."""
    file = tmp_path / NAMES[client]
    file.write_text(TEXTS[client])
    done(setup_of(client, tmp_path))
    old, new = ("journald", "syslog") if client == "docker" else ("pause:3.9", "pause:3.10")
    file.write_text(file.read_text().replace(old, new))
    after = undone(setup_of(client, tmp_path))
    read = json.loads if client == "docker" else tomllib.loads
    assert read(after[file.name]) == read(TEXTS[client].replace(old, new))


def test_docker_keeps_its_form(tmp_path: Path) -> None:
    (tmp_path / "daemon.json").write_text(DAEMON_JSON)
    made = done(setup_of("docker", tmp_path, default=True))
    kata = '"kata": {"path": "/usr/bin/kata"}'
    expected = DAEMON_JSON.replace(kata, f'{kata}, "gpurun": {{"path": "{PROGRAM}"}}')
    assert made["daemon.json"] == expected.replace("\n}\n", ',\n  "default-runtime": "gpurun"\n}\n')
    assert made["daemon.json" + KEPT] == DAEMON_JSON


def test_containerd_keeps_comments_and_is_like_the_default_runtime(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONTAINERD)
    text = done(setup_of("containerd", tmp_path))["config.toml"]
    assert text.startswith("version = 2  # ours\n") and "# mirrored" in text
    section = tomllib.loads(text)["plugins"][V2]["containerd"]
    assert section["runtimes"]["gpurun"]["options"] == {"SystemdCgroup": True, "BinaryName": PROGRAM}
    assert section["default_runtime_name"] == "runc"


def test_a_default_that_was_made_stays_until_it_is_taken_out(tmp_path: Path) -> None:
    for client in ("docker", "containerd"):
        directory = tmp_path / client
        directory.mkdir()
        done(setup_of(client, directory, default=True))
        assert plan_install(setup_of(client, directory)) == ()


@pytest.mark.parametrize("whose", ["the main file's", "an imported file's", "nobody's"])
def test_the_file_of_containerd_that_counts(whose: str, tmp_path: Path) -> None:
    """containerd before 2.1 takes the tables of a plugin whole from the last file that has them."""
    main, other = tmp_path / "config.toml", tmp_path / "conf.d/99-nvidia.toml"
    main.write_text('imports = ["conf.d/*.toml"]\n' + (CONTAINERD if whose != "nobody's" else "version = 3\n"))
    other.parent.mkdir()
    other.write_text(CONTAINERD if whose == "an imported file's" else "version = 3\n[debug]\nlevel = 'warn'\n")
    before = tree(tmp_path)
    asked = setup_of("containerd", tmp_path)
    made = done(asked)
    (changed,) = [name for name, text in made.items() if text != before.get(name) and not name.endswith(KEPT)]
    expected = {
        "the main file's": "config.toml",
        "an imported file's": "conf.d/99-nvidia.toml",
        "nobody's": "conf.d/gpurun.toml",
    }
    assert changed == expected[whose]
    assert (V3 if whose == "nobody's" else V2) in tomllib.loads(made[changed])["plugins"]
    assert undone(asked) == before


def test_a_file_of_its_own_for_containerd(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONTAINERD)
    start = tree(tmp_path)
    drop_in = tmp_path / "conf.d/50-gpurun.toml"
    asked = setup_of("containerd", tmp_path, drop_in=str(drop_in))
    made = done(asked)
    table = tomllib.loads(made["conf.d/50-gpurun.toml"])["plugins"][V2]
    assert table["sandbox_image"] == "registry/pause:3.9" and "gpurun" in table["containerd"]["runtimes"]
    assert tomllib.loads(made["config.toml"])["imports"] == [f"{tmp_path}/conf.d/*.toml"]
    assert plan_install(asked) == () and undone(asked) == start


@pytest.mark.parametrize("client", CLIENTS)
def test_what_means_the_same_already_is_left_alone(client: str, tmp_path: Path) -> None:
    """Whoever wrote it wrote it otherwise: another version of gpurun, or an administrator."""
    asked = setup_of(client, tmp_path)
    done(asked)
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    text = file.read_text()
    other = f"# another hand\n{text}\n[a.table.without.keys]\n"
    file.write_text(text.replace("{", "{ ", 1) if client == "docker" else other)
    assert plan_install(asked) == ()
    file.write_text(file.read_text().replace(PROGRAM, f"{PROGRAM}-other"))
    assert len(plan_install(asked)) == 1, "what means something else is not"


def test_a_file_of_its_own_beside_others(tmp_path: Path) -> None:
    """It comes last, so it repeats the table that counted before; an import that others use stays."""
    (tmp_path / "config.toml").write_text("version = 2\n")
    asked = setup_of("containerd", tmp_path, drop_in=str(tmp_path / "conf.d/gpurun.toml"))
    done(asked)
    other = tmp_path / "conf.d/99-nvidia.toml"
    other.write_text(CONTAINERD)
    made = done(asked)
    table = tomllib.loads(made["conf.d/gpurun.toml"])["plugins"][V2]
    assert table["sandbox_image"] == "registry/pause:3.9" and set(table["containerd"]["runtimes"]) >= {"runc", "gpurun"}
    after = undone(asked)
    assert set(tree(tmp_path)) == {"config.toml", "config.toml" + KEPT, "conf.d/99-nvidia.toml"}
    assert tomllib.loads(after["config.toml"])["imports"] == [f"{tmp_path}/conf.d/*.toml"]


def test_podmans_lists_of_runtimes(tmp_path: Path) -> None:
    """A list in our file replaces Podman's, so it repeats the runtimes that were on it."""
    (tmp_path / "containers.conf").write_text(TEXTS["podman"])
    (tmp_path / "containers.conf.d").mkdir()
    (tmp_path / "containers.conf.d/10-more.conf").write_text(
        '[engine]\nruntime_supports_nocgroup = ["youki", {append = true}]\n'
        'runtime_supports_json = [{append = false}, "kata"]\n'
    )
    engine = tomllib.loads(done(setup_of("podman", tmp_path, True))["containers.conf.d/gpurun.conf"])["engine"]
    assert engine == {
        "runtime": "gpurun",
        "runtime_supports_json": ["kata", "gpurun"],
        "runtime_supports_nocgroup": ["crun", "krun", "youki", "gpurun"],
        "runtimes": {"gpurun": [PROGRAM]},
    }


@pytest.mark.parametrize("client", ["podman", "crio"])
def test_a_file_of_the_directory_that_is_named(client: str, tmp_path: Path) -> None:
    """It is written itself, and no other; the lists and the runtime to be like are still those of the main file."""
    (tmp_path / NAMES[client]).write_text(TEXTS[client])
    start = tree(tmp_path)
    name = f"{NAMES[client]}.d/g.conf"
    asked = Setup(client, RuntimeEntry("gpurun", PROGRAM), str(tmp_path / name))
    for change in plan_install(asked):
        apply(change)
    made = tree(tmp_path)
    assert made.keys() - start.keys() == {name} and made.items() >= start.items()
    expected = {"podman": 'runtime_supports_json = ["crun", "gpurun"]', "crio": 'monitor_path = "/usr/bin/conmon"'}
    assert expected[client] in made[name] and PROGRAM in made[name]
    assert plan_install(asked) == ()
    for change in plan_uninstall(asked):
        apply(change)
    assert tree(tmp_path) == start and plan_uninstall(asked) == ()


@pytest.mark.parametrize(
    ("client", "text", "words"),
    [
        ("docker", "{", "daemon.json: is not valid JSON"),
        ("docker", '{\n  // our own\n  "debug": true\n}', r"\(line 2 is a comment, which JSON does not have: take it out\)"),
        ("docker", "[]", "is not a JSON object"),
        ("docker", '{"runtimes": 1}', "runtimes: is not an object"),
        ("containerd", "a = [", "config.toml: is not TOML"),
        ("containerd", "version = 0\n", "0 is not a version"),
        ("podman", "[engine", "containers.conf: is not TOML"),
    ],
)
def test_a_broken_file_is_not_touched(client: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / NAMES[client]).write_text(text)
    with pytest.raises(ConfigError, match=words):
        plan_install(setup_of(client, tmp_path))


@pytest.fixture(autouse=True)
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `install` notes what it tells clients: not this machine's own place."""
    directory = tmp_path.parent / f"{tmp_path.name}.noted"
    monkeypatch.setattr(ledger, "_path", lambda: f"{directory}/clients.json")
    return directory / "clients.json"


def call(*words: str, expect: int = 0) -> None:
    invocation = parse(words)
    assert (install if words[0] == "install" else uninstall)(invocation) == expect


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    file = tmp_path / "daemon.json"
    file.write_text(DAEMON_JSON)
    usual = ["--config", str(file), "--path", PROGRAM]
    call("install", "docker", *usual, "--no-names", "--dry-run")
    out = capfd.readouterr().out
    assert out.startswith(f"--- {file}\n+++ {file}\n@@") and "\033" not in out
    assert file.read_text() == DAEMON_JSON
    call("install", "docker", *usual, "--no-names")
    said = capfd.readouterr().err
    assert f"wrote {file} (before: {file}{KEPT})" in said and "docker reads it after: systemctl reload docker" in said
    call("install", "docker", *usual, "--no-names")
    assert "docker knows the runtime gpurun already" in capfd.readouterr().err
    call("uninstall", "docker", *usual)
    assert tree(tmp_path) == {"daemon.json": DAEMON_JSON}
    call("install", "kubernetes", "--runtime-class")
    assert "handler: gpurun" in capfd.readouterr().out
    with pytest.raises(
        GpurunError, match='install: unknown client "rkt", it must be one of docker, containerd, podman, crio or kubernetes'
    ):
        call("install", "rkt", "--path", PROGRAM)


def test_who_may_not_write_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "", "/etc/docker/daemon.json")

    monkeypatch.setattr("gpurun.toolkit.install.apply_all", denied)
    with pytest.raises(GpurunError, match=r"^/etc/docker/daemon.json: permission denied: run it as root, or with --dry-run"):
        call("install", "docker", "--config", str(tmp_path / "daemon.json"), "--path", PROGRAM, "--no-names")


@pytest.mark.parametrize("running", [True, False])
def test_a_client_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], running: bool
) -> None:
    """systemctl's own words for a reload of a service that is stopped do not say that nothing is wrong."""
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(f"#!/bin/sh\n[ $1 = is-active ] && exit {0 if running else 3}\necho broken >&2; exit 1\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(systemctl.parent))
    monkeypatch.setattr("gpurun.clients.restart._systemd", lambda: True)
    monkeypatch.setattr(ledger, "_LOCK", f"../{tmp_path}/lock")
    words = ("install", "docker", "--config", str(tmp_path / "d.json"), "--path", PROGRAM, "--no-names", "--restart")
    if running:
        with pytest.raises(GpurunError, match="`systemctl reload docker` failed: broken"):
            call(*words)
    else:
        call(*words)
        assert "docker does not run; it reads its configuration when it starts: systemctl start" in capfd.readouterr().err


def test_what_the_client_does_not_take_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own check of its configuration fails: everything is as it was."""
    fake = tmp_path / "bin/containerd"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'containerd: no such plugin' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc/config.toml"
    for text in (None, CONTAINERD):
        if text:
            file.write_text(text)
        with pytest.raises(
            GpurunError,
            match="config dump` rejects the new configuration, and nothing is changed: containerd: no such plugin",
        ):
            call("install", "containerd", "--config", str(file), "--path", PROGRAM, "--no-names")
        assert (file.read_text() if file.exists() else None) == text


@pytest.mark.clients
@pytest.mark.parametrize("default", [False, True])
def test_containerds_own_configuration(default: bool, tmp_path: Path) -> None:
    """What `containerd config default` prints, changed, is read by containerd as it is to be, and given back as it was."""
    if not shutil.which("containerd"):
        pytest.skip("containerd is not installed")
    file = tmp_path / "config.toml"
    text = subprocess.run(["containerd", "config", "default"], capture_output=True, text=True, check=True).stdout
    file.write_text(text)
    done(setup_of("containerd", tmp_path, default))
    command = ["containerd", "--config", str(file), "config", "dump"]
    plugins = tomllib.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["plugins"]
    section = (plugins.get(V3) or plugins[V2])["containerd"]
    assert section["runtimes"]["gpurun"]["options"]["BinaryName"] == PROGRAM
    assert section["default_runtime_name"] == ("gpurun" if default else "runc")
    assert "runc" in section["runtimes"]
    assert undone(setup_of("containerd", tmp_path, default)) == {"config.toml": text}


@pytest.mark.clients
@pytest.mark.native
def test_podman_reads_it(tmp_path: Path) -> None:
    """The default runtime is the one that was installed, and `--cgroups=disabled` is not refused for it."""
    if not shutil.which("podman") or not shutil.which("busybox") or os.geteuid() != 0:
        pytest.skip("Podman or busybox is not installed, or this is not root")
    script = """mount -t tmpfs etc /etc/containers && cp "$2" /etc/containers/policy.json 2>/dev/null
        cd /; "$1" install podman --default && podman info --format '{{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}'
        podman run --rm --ulimit nofile=64:64 --ulimit nproc=64:64 --cgroups=disabled --network none \
            --rootfs "$3" /bin/busybox echo without a cgroup
        "$1" uninstall podman; find /etc/containers -name '*gpurun*'"""
    program = Path(__file__).resolve().parents[2] / "build/gpurun"
    (rootfs := tmp_path / "rootfs/bin").mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "", rootfs)
    words = [str(program), "/etc/containers/policy.json", str(rootfs.parent)]
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", *words]
    storage = {"CONTAINERS_STORAGE_CONF": str(tmp_path / "storage.conf"), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    (tmp_path / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\nrunroot = "{tmp_path}/run"\ngraphroot = "{tmp_path}/graph"\n'
    )
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=storage)
    assert ran.stdout.splitlines() == [f"gpurun {program}", "without a cgroup"], ran.stderr


#: As Debian's package installs it: it names no runtime.
DEBIANS = f"""version = 2

[plugins]
  [plugins."{V2}"]
    [plugins."{V2}".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd"
"""


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("text", [DEBIANS, "version = 2\n", None])
def test_containerd_keeps_its_own_runtime(tmp_path: Path, text: str | None, default: bool) -> None:
    """containerd 1 takes the table of runtimes whole; without runc, its default, the plugin for pods would not start."""
    if text is not None:
        (tmp_path / "config.toml").write_text(text)
    asked = setup_of("containerd", tmp_path, default)
    section = tomllib.loads(done(asked)["config.toml"])["plugins"][V2]["containerd"]
    assert section["runtimes"]["runc"] == {"runtime_type": "io.containerd.runc.v2"}
    assert section.get("default_runtime_name", "runc") == ("gpurun" if default else "runc")
    assert done(asked)["config.toml"] == (tmp_path / "config.toml").read_text(), "once is enough"
    with (tmp_path / "config.toml").open("a") as file:
        file.write("# changed since\n")  # so it is not simply put back
    left = undone(asked)
    if text is DEBIANS:
        assert tomllib.loads(left["config.toml"]) == tomllib.loads(DEBIANS)
    else:
        assert left.get("config.toml", "version = 2\n").startswith("version = 2")
