"""`install` and `uninstall` as commands: the client's check, its restart and whom that ends, names, notes, two at once."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from gpurun.cli.parse import parse
from gpurun.clients import files, ledger, restart
from gpurun.clients import install as decisions
from gpurun.errors import GpurunError, UsageError
from gpurun.toolkit import install as commands
from gpurun.toolkit.names import names_of

#: dockerd's own check, which refuses a file that is not there, or in which "refused" stands.
DOCKERD = """#!/bin/sh
case "$1" in
    --help) echo "      --validate   check" ;;
    --validate) [ -e "$3" ] || { echo "unable to configure: open $3: no such file" >&2; exit 1; }
        if grep -q refused "$3"; then echo "unable to configure: refused" >&2; exit 1; fi ;;
esac
"""
CONTAINERD = '#!/bin/sh\n[ -e "$2" ] || { echo "containerd: open $2: no such file" >&2; exit 1; }\n'
DOCKER = """#!/bin/sh
[ -e "$STATE/stopped" ] && exit 1
case "$*" in
    *LiveRestore*) cat "$STATE/live" ;;
    *" ps "*) cat "$STATE/running" ;;
esac
"""
SYSTEMCTL = """#!/bin/sh
case "$1" in
    is-active) [ ! -e "$STATE/stopped" ] ;;
    show) cat "$STATE/started" ;;
    *) echo "$*" >>"$STATE/systemctl"; [ ! -e "$STATE/fails" ] ;;
esac
"""


class Host:
    """A host with Docker and containerd, in a directory; :attr:`state` says what its programs answer."""

    def __init__(self, directory: Path) -> None:
        self.etc, self.bin, self.state = directory / "etc", directory / "bin", directory / "state"
        self.names = directory / "names"
        for made in (self.etc, self.bin, self.state, self.names):
            made.mkdir()
        programs = {"dockerd": DOCKERD, "containerd": CONTAINERD, "docker": DOCKER, "systemctl": SYSTEMCTL}
        for name, text in programs.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self.program = self.bin / "gpurun"
        self.program.write_text("")
        self.program.chmod(0o755)
        self.daemon_json = self.etc / "docker/daemon.json"
        self.says(live="false", running="", started="0")

    def says(self, **what: str) -> None:
        for name, text in what.items():
            (self.state / name).write_text(text + "\n")

    def links(self) -> list[str]:
        return sorted(os.listdir(self.names))

    def asked(self) -> list[str]:
        """What systemctl was asked to do."""
        file = self.state / "systemctl"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setenv("STATE", str(made.state))
    monkeypatch.setattr(ledger, "_path", lambda: str(tmp_path / "noted/clients.json"))
    for client, path in decisions.FILES.items():
        monkeypatch.setitem(decisions.FILES, client, str(made.etc) + path.removeprefix("/etc"))
    monkeypatch.setattr(commands, "NAMES_DIRECTORY", str(made.names))
    monkeypatch.setattr(commands, "SERVICE_PATH", str(made.names))
    monkeypatch.setattr(commands, "own_path", lambda: str(made.program))
    monkeypatch.setattr(commands, "is_one_file", lambda: True)
    monkeypatch.setattr(restart, "_systemd", lambda: True)
    return made


def call(*words: str) -> None:
    invocation = parse(words)
    assert (commands.install if words[0] == "install" else commands.uninstall)(invocation) == 0


def noted() -> list[str]:
    return [f"{entry.client} {entry.name}" for entry in ledger.entries()]


@pytest.mark.parametrize("client", ["docker", "containerd"])
@pytest.mark.parametrize("more", [(), ("--default",), ("--cdi",)])
def test_uninstall_where_install_made_the_file(host: Host, client: str, more: tuple[str, ...]) -> None:
    """The client's own check refuses a file that is not there; without one, a client needs none."""
    call("install", client, *more)
    assert noted() == [f"{client} gpurun"]
    call("uninstall", client)
    assert [path for path in host.etc.rglob("*") if path.is_file()] == [] and host.links() == [] and noted() == []


def test_a_dry_run_asks_dockerd(host: Host) -> None:
    """What dockerd is going to refuse is not shown as if it went well."""
    host.daemon_json.parent.mkdir()
    host.daemon_json.write_text('{"refused": true}\n')
    for words in (("install", "docker", "--dry-run"), ("install", "docker")):
        with pytest.raises(GpurunError, match=f"--config-file {host.daemon_json}` rejects the new configuration.*refused"):
            call(*words)
    assert host.daemon_json.read_text() == '{"refused": true}\n' and host.links() == [] and noted() == []


def test_names_stay_while_another_runtime_needs_them(host: Host, tmp_path: Path) -> None:
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\nexec {host.program} --debug "$@"\n')
    wrapper.chmod(0o755)
    call("install", "docker")
    call("install", "docker", "--name", "wrapped", "--path", str(wrapper))
    call("install", "containerd", "--name", "third")
    everything = sorted(names_of(("nvidia",)))
    for words in (("docker",), ("docker", "--name", "wrapped", "--path", str(wrapper))):
        assert host.links() == everything
        call("uninstall", *words)
    assert host.links() == everything and noted() == ["containerd third"]
    call("uninstall", "containerd", "--name", "third")
    assert host.links() == []


@pytest.mark.parametrize("client", ["podman", "crio"])
def test_two_names_in_one_drop_in(host: Host, client: str) -> None:
    call("install", client, "--default")
    call("install", client, "--name", "second")
    call("uninstall", client, "--name", "never")
    call("uninstall", client)
    (file,) = [path for path in host.etc.rglob("*") if path.is_file()]
    assert "second" in file.read_text() and f'"{host.program}"' in file.read_text()
    assert '"gpurun"' not in file.read_text() and "runtimes.gpurun" not in file.read_text()
    call("uninstall", client, "--name", "second")
    assert not file.exists()


def test_whom_a_restart_ends_is_said(host: Host, capfd: pytest.CaptureFixture[str]) -> None:
    host.says(running="web\ndb")
    call("install", "docker", "--dry-run", "--restart")
    assert "# it ends 2 running containers (web, db); they go on if" in capfd.readouterr().out
    assert host.asked() == [] and not host.daemon_json.exists()
    call("install", "docker")
    said = capfd.readouterr().err
    assert "docker reads it after: systemctl restart docker (it ends 2 running containers (web, db)" in said
    call("uninstall", "docker", "--restart")
    said = capfd.readouterr().err
    assert said.index("systemctl restart docker: it ends 2 running") < said.index("done: systemctl restart docker")
    host.says(live="true")
    call("install", "docker", "--restart")
    assert "it ends" not in capfd.readouterr().err and host.asked() == ["restart docker"] * 2


def test_a_reload_ends_nothing(host: Host, capfd: pytest.CaptureFixture[str]) -> None:
    host.says(running="web")
    call("install", "docker", "--reload")
    said = capfd.readouterr().err
    assert "it ends" not in said and "what `--gpus` needs" in said and "systemctl restart docker" in said
    call("uninstall", "docker", "--reload")
    assert host.asked() == ["reload docker"] * 2
    with pytest.raises(UsageError, match="containerd cannot reload"):
        call("install", "containerd", "--reload")
    with pytest.raises(UsageError, match="exclude each other"):
        call("install", "docker", "--reload", "--restart")
    assert list(host.etc.rglob("*.json")) == [] and list(host.etc.rglob("*.toml")) == []


def test_without_systemd(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A restart is refused before anything is changed; a reload is SIGHUP to the dockerd of the pid file alone."""
    monkeypatch.setattr(restart, "_systemd", lambda: False)
    monkeypatch.setattr(restart, "_DOCKER_PID", str(tmp_path / "docker.pid"))
    with pytest.raises(GpurunError, match="needs systemd"):
        call("install", "docker", "--restart")
    assert not host.daemon_json.exists()
    script = "trap 'echo hup; exit' HUP; printf dockerd >/proc/$$/comm; echo ready; while :; do read line; done"
    for name, end in (("dockerd", b"hup\n"), ("another", b"")):
        waiting = subprocess.Popen(
            ["bash", "-c", script.replace("printf dockerd", f"printf {name}")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert waiting.stdout is not None and waiting.stdin is not None and waiting.stdout.readline() == b"ready\n"
        (tmp_path / "docker.pid").write_text(str(waiting.pid))
        call("install" if name == "dockerd" else "uninstall", "docker", "--reload")
        if not end:
            waiting.kill()
        waiting.stdin.close()
        assert waiting.stdout.read() == end
        waiting.wait()


def test_killed_before_the_restart(host: Host) -> None:
    """The next install knows that the client has not read its configuration; one that was started since has."""
    call("install", "docker")
    assert host.asked() == []
    call("install", "docker", "--restart")
    assert host.asked() == ["restart docker"], "it may have been killed"
    call("install", "docker", "--restart")
    assert host.asked() == ["restart docker"], "it has read it"
    call("install", "docker", "--default")
    host.says(started=str(time.monotonic_ns() // 1000 + 1))
    call("install", "docker", "--default", "--restart")
    assert host.asked() == ["restart docker"], "somebody has restarted it"
    (host.state / "fails").touch()
    with pytest.raises(GpurunError, match="`systemctl restart docker` failed"):
        call("uninstall", "docker", "--restart")
    assert not host.daemon_json.exists() and noted() == ["docker gpurun"]
    (host.state / "fails").unlink()
    call("uninstall", "docker", "--restart")
    assert host.asked()[2:] == ["restart docker"] and noted() == []


def test_killed_between_the_links(host: Host) -> None:
    """Docker looks for the hook alone, but `--gpus` needs the others as well; a link half made goes."""
    call("install", "docker")
    (host.names / "nvidia-container-cli").unlink()
    (host.names / "nvidia-ctk.gpurun.123").symlink_to(host.program)
    call("install", "docker")
    assert host.links() == sorted(names_of(("nvidia",)))


def test_a_name_that_is_taken_is_found_before_anything_is_changed(host: Host) -> None:
    (host.names / "nvidia-ctk").write_text("another's")
    with pytest.raises(GpurunError, match="nvidia-ctk exists and is not this program"):
        call("install", "docker")
    assert not host.daemon_json.exists() and host.links() == ["nvidia-ctk"] and noted() == []


def test_uninstall_all(host: Host, capfd: pytest.CaptureFixture[str]) -> None:
    """What this program's install has written goes, wherever; what an administrator wrote, or has changed since, stays."""
    host.daemon_json.parent.mkdir()
    by_hand = json.dumps({"runtimes": {"mine": {"path": str(host.program)}}})
    host.daemon_json.write_text(by_hand)
    call("install", "docker", "--default", "--no-names")
    call("install", "podman")
    call("install", "containerd", "--drop-in", str(host.etc / "containerd/conf.d/x.toml"), "--no-names")
    call("install", "crio")
    changed = host.etc / "crio/crio.conf.d/gpurun.conf"
    changed.write_text(changed.read_text().replace(str(host.program), "/opt/another"))
    kept = changed.read_text()
    with pytest.raises(UsageError, match="--name is for one client"):
        call("uninstall", "all", "--name", "x")
    before = {path: path.read_text() for path in host.etc.rglob("*") if path.is_file()}
    call("uninstall", "all", "--dry-run")
    assert before == {path: path.read_text() for path in host.etc.rglob("*") if path.is_file()}
    capfd.readouterr()
    call("uninstall", "all", "--reload")
    assert {path: path.read_text() for path in host.etc.rglob("*") if path.is_file()} == {
        host.daemon_json: by_hand, changed: kept,
    }  # fmt: skip
    assert "gpurun is another program now, and stays" in capfd.readouterr().err and host.asked() == ["reload docker"]


def test_two_at_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one waits, and sees what the first one has done."""
    monkeypatch.setattr(ledger, "_LOCK", f"../{host.state}/lock")
    with ledger.exclusive_lock():
        monkeypatch.setattr(ledger, "PATIENCE", 0.0)
        with pytest.raises(GpurunError, match=r"another `gpurun install` or `uninstall` has been at work for 0 s"):
            call("install", "docker")
        assert not host.daemon_json.exists()
        monkeypatch.setattr(ledger, "PATIENCE", 600.0)
        second = threading.Thread(target=call, args=("install", "docker", "--name", "second"))
        second.start()
        host.daemon_json.parent.mkdir()
        files.write(str(host.daemon_json), '{"runtimes": {"first": {"path": "/opt/first"}}}')
    second.join()
    assert set(json.loads(host.daemon_json.read_text())["runtimes"]) == {"first", "second"}


def test_notes_that_cannot_be_read_stop_nobody(host: Host) -> None:
    for text in ("{", "[1]", '{"a": 1}', '[{"client": "docker"}]', "null", "\udcff"):
        call("install", "docker")
        path = Path(ledger._path())
        path.write_text(text, errors="surrogateescape")
        call("uninstall", "docker")
        assert not host.daemon_json.exists()


@pytest.fixture
def user(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The same host for a user whose clients are their own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    (host.bin / "systemctl").write_text(
        SYSTEMCTL.replace('case "$1" in', '[ "$1" = --user ] || exit 1; shift; case "$1" in')
    )
    return host


def test_the_podman_of_a_user(user: Host, tmp_path: Path) -> None:
    """Root's lists of runtimes count for users too, and what is written is the user's file alone."""
    mine = tmp_path / "config/containers/containers.conf.d/gpurun.conf"
    call("install", "podman", "--user")
    assert str(user.program) in mine.read_text()
    assert [path for path in user.etc.rglob("*") if path.is_file()] == [] and user.links() == [] and user.asked() == []
    call("uninstall", "podman", "--user")
    assert not mine.exists() and noted() == []


def test_the_docker_of_a_user(user: Host, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "config/docker/daemon.json"
    call("install", "docker", "--user")
    assert json.loads(mine.read_text())["runtimes"]["gpurun"]["path"] == str(user.program) and user.links() == []
    assert "docker reads it after: systemctl --user reload docker" in capfd.readouterr().err
    call("uninstall", "docker", "--user", "--restart")
    assert user.asked() == ["reload docker"] and not mine.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("containerd", "--user"), "--user is for docker and podman, not for containerd"),
        (("podman", "--user", "--config=/x"), "--user and --config exclude each other"),
    ],
)
def test_what_user_is_not_for(user: Host, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call("install", *words)


@pytest.mark.parametrize("name", ["../x", "a b", "a\nb", "", "-x", "\udcff", "a" * 64, "$(id)", "A", "a.b", "a-"])
@pytest.mark.parametrize("words", [("containerd",), ("kubernetes",), ("kubernetes", "--runtime-class")])
def test_a_name_that_nobody_could_ask_for(host: Host, words: tuple[str, ...], name: str) -> None:
    if (name in ("", "A", "a.b", "a-") and words == ("containerd",)) or not name:  # which mean gpurun, or are names there
        call("install", *words, f"--name={name}")
        return
    with pytest.raises(UsageError, match="is not a name that a "):
        call("install", *words, f"--name={name}")
    assert not (host.etc / "containerd").exists()


@pytest.mark.parametrize(
    ("path", "said"), [("/", "is not a program"), ("/etc/passwd", "is not a program"), ("/x\udcff", "has characters")]
)
def test_a_program_that_nobody_could_call(host: Host, path: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call("install", "docker", f"--path={path}")
    call("install", "docker", "--path=/not/there/yet")  # as in an image that is being made


@pytest.mark.parametrize("client", ["docker", "containerd"])
def test_a_file_that_is_nested_too_deeply(host: Host, client: str) -> None:
    path = Path(decisions.FILES[client])
    path.parent.mkdir()
    path.write_text(("a = " if client == "containerd" else "") + "[" * 200_000)
    with pytest.raises(GpurunError, match=f"{path}: is .*nested"):
        call("install", client)


def test_root_has_the_hosts_clients(host: Host) -> None:
    with pytest.raises(UsageError, match="--user changes the configuration of the user"):
        call("install", "docker", "--user")


@pytest.mark.parametrize("client", ["docker", "containerd"])
@pytest.mark.parametrize(
    ("makers", "docker", "containerd"),
    [
        ((), ("nvidia",), ("nvidia",)),
        (("amd",), ("amd",), ()),
        (("nvidia",), ("nvidia",), ("nvidia",)),
        (("nvidia", "amd"), ("nvidia", "amd"), ("nvidia",)),
    ],
)
def test_the_names_are_of_those_whose_gpus_the_host_has(
    host: Host,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    client: str,
    makers: tuple[str, ...],
    docker: tuple[str, ...],
    containerd: tuple[str, ...],
) -> None:
    """Where dockerd finds NVIDIA's hook it does not look for AMD's runtime."""
    for maker, path in (("nvidia", "proc/driver/nvidia"), ("amd", "sys/module/amdgpu/drivers")):
        if maker in makers:
            (tmp_path / "root" / path).mkdir(parents=True)
    monkeypatch.setenv("GPURUN_SYSROOT", str(tmp_path / "root"))
    named = docker if client == "docker" else containerd
    owners = " and ".join([{"nvidia": "NVIDIA's", "amd": "AMD's"}[maker] for maker in named])
    call("install", client, "--dry-run")
    assert (f"# and links of {owners} names in {host.names}, for --gpus\n" in capfd.readouterr().out) == bool(named)
    call("install", client)
    assert host.links() == sorted(names_of(named))
    said = capfd.readouterr().err
    assert ("docker's --gpus means NVIDIA's GPUs here" in said) == (client == "docker" and len(makers) == 2)
    call("uninstall", client)
    assert host.links() == []


def test_a_hook_of_nvidias_on_a_host_with_amds_gpus(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As an install of gpurun that knew NVIDIA alone has left it: --gpus means NVIDIA's until it goes."""
    (tmp_path / "root/sys/module/amdgpu/drivers").mkdir(parents=True)
    monkeypatch.setenv("GPURUN_SYSROOT", str(tmp_path / "root"))
    hook = host.names / "nvidia-container-runtime-hook"
    hook.symlink_to(host.program)
    call("install", "docker")
    assert f"without {hook} it would mean AMD's" in capfd.readouterr().err
    assert set(host.links()) == {*names_of(("amd",)), hook.name}
    call("uninstall", "docker")
    assert host.links() == []


def test_amds_own_runtime_stays(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root/sys/module/amdgpu/drivers").mkdir(parents=True)
    monkeypatch.setenv("GPURUN_SYSROOT", str(tmp_path / "root"))
    theirs = host.names / "amd-container-runtime"
    theirs.write_text("#!/bin/sh\n")
    theirs.chmod(0o755)
    call("install", "docker")
    assert host.links() == [theirs.name] and not theirs.is_symlink()
    call("uninstall", "docker")
    assert host.links() == [theirs.name]
